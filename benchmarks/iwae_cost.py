"""Seconds of an IWAE step against T: a + b log2 T for MLMC, a + b T for BR. CIFAR-10 networks.

The levels of MLMC have too heavy a tail to be averaged over by chance: a step with all chains at
one level is timed for each level (of a batch of 32 as many chains as have it on average, but at
least one), and the times of a chain are averaged by the level law. The number is the largest ratio
of measured seconds to those of the fitted line. Processor time of one thread, so that other
programs do not bend the curve.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

import mlmcgrad as mg
from benchmarks import networks
from benchmarks.timing import Result, seconds, summary
from mlmcgrad.iwae import LatentModel, Objective
from mlmcgrad.lengths import Lengths
from mlmcgrad.paper.experiments.accuracy import fit_line
from mlmcgrad.paper.runs.process import threads

K, BATCH, LEVELS, REPEATS = 5, 32, 10, 7
LENGTHS = (2, 4, 8, 16, 32)  # of BR


@dataclass(frozen=True)
class OneLevel:
    """MLMC with all chains at the same level."""

    level: int

    def draw(self, chains: int, n: int | None, generator: torch.Generator) -> Lengths:
        """Lengths and weights of that level."""
        return mg.MLMC(2**LEVELS).lengths_for(torch.full((chains,), self.level), n)


def run() -> list[Result]:
    model, y, _ = networks.cifar10()
    generator = torch.Generator().manual_seed(0)

    def spent(objective: Objective, images: int) -> float:
        model.zero_grad()
        return seconds(
            lambda: objective.backward(y[:images], n=1, generator=generator), time.process_time
        )

    levels = [(at_level(model, k), max(1, BATCH >> k)) for k in range(LEVELS + 1)]
    br = [Objective(model, "br", candidates=K, truncation=length) for length in LENGTHS]
    curves: dict[str, list[list[float]]] = {"MLMC": [], "BR": []}
    with threads(1):
        for repeat in range(REPEATS + 1):
            chain = [spent(objective, images) / images for objective, images in levels]
            long = [spent(objective, BATCH) for objective in br]
            if repeat:  # the first is the warm-up
                curves["MLMC"].append([BATCH * s for s in averaged(chain)])
                curves["BR"].append(long)
    abscissae = {
        "MLMC": [float(k) for k in range(1, LEVELS + 1)],
        "BR": [float(t) for t in LENGTHS],
    }
    return [
        _straight(
            f"{name}-IWAE seconds over the line a + b {x}, T = 2 … {last}, largest",
            abscissae[name],
            curves[name],
        )
        for name, x, last in (("MLMC", "log2 T", 2**LEVELS), ("BR", "T", LENGTHS[-1]))
    ]


def at_level(model: LatentModel, level: int) -> Objective:
    """MLMC-IWAE with all chains at one level."""
    objective = Objective(model, "mlmc", candidates=K, truncation=2**LEVELS)
    vars(objective)["estimator"] = OneLevel(level)  # in place of the one that draws levels
    return objective


def averaged(chain: list[float]) -> list[float]:
    """Mean seconds of a chain for T = 2, 4, …, from the seconds at each level.

    Level k has the probability 2^{−k}, and those beyond T run one step, as level 0 does.
    """
    means = []
    for kappa in range(1, len(chain)):
        used = sum(2.0**-k * chain[k] for k in range(1, kappa + 1))
        means.append(used + 2.0**-kappa * chain[0])
    return means


def _straight(name: str, x: list[float], curves: list[list[float]]) -> Result:
    """Largest ratio to the fitted line in each repetition, and the line of the medians."""
    largest = []
    for curve in curves:
        fit = fit_line(x, curve)
        line = [fit.intercept + fit.slope * a for a in x]
        largest.append(max(s / expected for s, expected in zip(curve, line, strict=True)))
    middle = fit_line(x, [statistics.median(column) for column in zip(*curves, strict=True)])
    note = f"a = {middle.intercept:.3f} s, b = {middle.slope:.4f} s, R² = {middle.r2:.3f}"
    return summary(name, largest, target=1.10, at_most=True, note=note)
