"""Proposition 1 in numbers: bias, second and third moment and cost of Ĥ against T.

Four kernels with known answers, MLMC and the plain average of T steps. What theory says about one
chain's estimate, once T exceeds the mixing time: the bias falls as 1/T, E‖Ĥ‖² grows linearly in
log T, E‖Ĥ‖³ at most as √T, and the cost is κ + 2^{−κ} transitions. Lines are fitted where T exceeds
a multiple of the integrated autocorrelation time, which is measured first.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from mlmcgrad import kernels, problems
from mlmcgrad.diagnostics import accuracy, diagnose, level_test
from mlmcgrad.estimators import MLMC, Average
from mlmcgrad.experiments.folder import simulated
from mlmcgrad.experiments.scaling.figures import draw
from mlmcgrad.experiments.scaling.findings import summarise
from mlmcgrad.experiments.scaling.settings import Scaling
from mlmcgrad.experiments.scaling.tables import show
from mlmcgrad.experiments.settings import Preset
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.runs.pool import Report

KERNELS = ("finite", "rwmh", "mala", "isir")
# Autocorrelation times after which a line is fitted: the third moment, dominated by the longest
# chains, takes longest to reach its power of T.
SINCE_BIAS, SINCE_SECOND, SINCE_THIRD = 4.0, 8.0, 64.0


@dataclass(frozen=True)
class Effort:
    """How much a preset computes for one kernel."""

    replicates: int  # chains of length 1; longer ones get fewer
    least: int  # chains of the largest length
    highest: int  # the largest T is 2^highest


EFFORT: dict[Preset, dict[str, Effort]] = {
    "smoke": dict.fromkeys(KERNELS, Effort(40_000, 200, 6)) | {"isir": Effort(8_000, 100, 5)},
    "quick": dict.fromkeys(KERNELS, Effort(8_000_000, 2_000, 12))
    | {"isir": Effort(400_000, 500, 10)},
    "full": dict.fromkeys(KERNELS, Effort(80_000_000, 10_000, 14))
    | {"finite": Effort(40_000_000, 10_000, 14), "isir": Effort(4_000_000, 2_000, 12)},
}


def run(settings: Scaling, console: Console) -> dict[str, Any]:
    """Measure in the run folder, draw the figure and print the table; returns the summary."""
    common = {"preset": settings.preset, "seed": settings.seed}
    arguments = {
        f"{name}-{estimator}": {"name": name, "estimator": estimator, **common}
        for name in KERNELS
        for estimator in ("mlmc", "average")
    }
    with simulated(settings, measure, arguments, summarise, console) as findings:
        path = draw(settings.out, findings)
        show(findings.summary, console)
    console.print(f"figure: {path}", style="bold", highlight=False, soft_wrap=True)
    return findings.summary


def measure(report: Report, name: str, estimator: str, preset: Preset, seed: int) -> dict[str, Any]:
    """One kernel with one estimator: moments and cost for each T, fitted lines, levels, chain."""
    effort = EFFORT[preset][name]
    generator = torch.Generator().manual_seed(1000 * seed + KERNELS.index(name))
    problem, kernel, loss, x0, context = example(name)
    chosen = MLMC(2.0) if estimator == "mlmc" else Average(1)
    gradient = MarkovGradient(kernel, loss, chosen, parameters=problem.parameters)
    many = torch.zeros(512, dtype=torch.int64)  # the same start for all chains
    start = None if x0 is None else x0[many]
    health = diagnose(gradient, start, *(c[many] for c in context), length=400, generator=generator)
    time = health.autocorrelation_time
    ladder = accuracy(
        gradient,
        problem,
        x0,
        *context,
        ladder=[2**k for k in range(1, effort.highest + 1)],
        generator=generator,
        replicates=effort.replicates,
        least=effort.least,
        report=lambda share: report(0.9 * share),
    )
    # The short chains of a smoke run leave at least three points.
    longest = 2.0 ** (effort.highest - 2)
    fits = {
        "bias": ladder.bias_slope(min(SINCE_BIAS * time, longest)),
        "second_moment": ladder.second_moment(min(SINCE_SECOND * time, longest)),
        "third_moment": ladder.third_moment_slope(min(SINCE_THIRD * time, longest)),
        "cost": ladder.cost_slope(),
    }
    about = {"kernel": name, "estimator": estimator}
    result: dict[str, Any] = {
        **about,
        "rows": [{**about, **dataclasses.asdict(row)} for row in ladder.rows],
        "fits": {key: dataclasses.asdict(fit) for key, fit in fits.items()},
        "autocorrelation_time": time,
        "acceptance": health.acceptance,
    }
    if estimator == "mlmc":
        levels = level_test(
            gradient,
            x0,
            *context,
            highest=min(effort.highest, 8),
            generator=generator,
            replicates=effort.replicates // 10,
            least=effort.least,
        )
        result["levels"] = [dataclasses.asdict(row) for row in levels.rows]
    report(1.0)
    return result


def example(
    name: str,
) -> tuple[problems.Problem, kernels.Kernel, Any, Tensor | None, tuple[Tensor, ...]]:
    """Problem, kernel, loss, one start and its context. Starts are away from the target."""
    if name == "finite":
        ring = problems.finite_chain(states=6, seed=1)
        return ring, ring.kernel(), ring.loss, ring.start(1), ()
    if name == "isir":
        latent = problems.linear_gaussian(data=1, proposal_scale=0.3, proposal_shift=0.2)
        return latent, latent.kernel(), latent.loss, None, (latent.data,)
    target = problems.skewed(1)
    if name == "mala":
        return target, kernels.MALA(target.log_density, 1.0), target.loss, 2.0 * target.start(1), ()
    return target, kernels.RWMH(target.log_density, 3.0), target.loss, 6.0 * target.start(1), ()
