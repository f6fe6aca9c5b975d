"""Variance × evaluations of MLMC gradients: sampled, Rao-Blackwellised, balanced, base 1, 2 and 4.

Halving the product is worth twice the computer. On the linear-Gaussian model (T = 64) and on a
CIFAR-10 decoder after a minute of training (T = 16, the gradient of θ given 32 images; skipped
without the pictures). Variance: trace of the covariance of a batch gradient times the number of
chains; evaluations: decoder (or density) evaluations of a chain. Written to variance.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mlmcgrad as mg
from benchmarks import networks
from benchmarks.timing import Result
from mlmcgrad.iwae import Objective
from mlmcgrad.levels import Assignment
from mlmcgrad.paper.runs.process import threads

K = 5
ASSIGNMENTS: tuple[Assignment, ...] = ("independent", "balanced")
Draw = Callable[[torch.Generator], tuple[Tensor, int]]  # a gradient, and its evaluations


@dataclass(frozen=True)
class Row:
    """One estimator on one problem."""

    problem: str
    selection: str
    levels: str
    base: int
    evaluations: float
    variance: float
    product: float
    gain: float  # product of the first row over this one
    gain_low: float  # quartiles over resampled calls
    gain_high: float


@dataclass(frozen=True)
class Sample:
    """Squared distances from the mean, for each call, and evaluations of a chain."""

    distances: Tensor
    evaluations: float

    def products(self, generator: torch.Generator) -> Tensor:
        """Variance × evaluations of resampled calls."""
        picks = torch.randint(len(self.distances), (2000, len(self.distances)), generator=generator)
        return self.distances[picks].mean(1) * self.evaluations


def run() -> list[Result]:
    rows, results = [], []
    problems: dict[str, tuple[Callable[[bool, Assignment, int], Draw], int, int]] = {
        "linear-Gaussian": (_linear_gaussian, 128, 300)
    }
    if networks.cifar10()[2]:
        problems["CIFAR-10"] = (_cifar10, 32, 100)
    else:
        Console().print("variance on CIFAR-10 is skipped: the pictures are not there")
    with threads(1):
        for problem, (make, chains, calls) in problems.items():
            samples = {
                which: _sample(make(*which), chains, calls)
                for which in product((False, True), ASSIGNMENTS, (1, 2, 4))
            }
            rows += _rows(problem, samples)
            plain = samples[False, "independent", 1]
            label = f"variance × evaluations, sampled / Rao-Blackwell, {problem}"
            gain = _gain(plain, samples[True, "independent", 1])
            results.append(Result(label, *gain, target=1.0))
    records = [asdict(row) for row in rows]
    path = Path(__file__).with_name("variance.json")
    path.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    for problem in problems:
        Console().print(_table(problem, [row for row in rows if row.problem == problem]))
    return results


def _linear_gaussian(rao_blackwell: bool, assignment: Assignment, base: int) -> Draw:
    problem = mg.problems.linear_gaussian()
    gradient = mg.MarkovGradient(
        problem.kernel(K, rao_blackwell),
        problem.loss,
        mg.MLMC(64, assignment=assignment, base=base),
        parameters=problem.parameters,
        chunk=2**16,
    )
    y = problem.data.repeat(16, 1)  # 128 chains

    def draw(generator: torch.Generator) -> tuple[Tensor, int]:
        tensors, estimate = gradient.gradient(None, y, n=1, generator=generator)
        return torch.cat([t.flatten() for t in tensors]), estimate.evaluations

    return draw


def _cifar10(rao_blackwell: bool, assignment: Assignment, base: int) -> Draw:
    model, y, _ = networks.cifar10()
    objective = Objective(
        model,
        "mlmc",
        candidates=K,
        truncation=16,
        rao_blackwell=rao_blackwell,
        assignment=assignment,
        base=base,
    )

    def draw(generator: torch.Generator) -> tuple[Tensor, int]:
        model.zero_grad()
        step = objective.backward(y[:32], n=1, generator=generator)
        gradients = [p.grad.flatten() for p in model.decoder.parameters() if p.grad is not None]
        return torch.cat(gradients), step.estimate.evaluations

    return draw


def _sample(draw: Draw, chains: int, calls: int) -> Sample:
    generator = torch.Generator().manual_seed(0)
    gradients, evaluations = zip(*(draw(generator) for _ in range(calls)), strict=True)
    stacked = torch.stack(gradients)
    distances = (stacked - stacked.mean(0)).square().sum(1).double() * calls / (calls - 1)
    return Sample(distances * chains, sum(evaluations) / calls / chains)


def _gain(plain: Sample, other: Sample) -> tuple[float, float, float]:
    """Ratio of the products, with quartiles over resampled calls."""
    generator = torch.Generator().manual_seed(1)
    ratios = plain.products(generator) / other.products(generator)
    low, high = ratios.quantile(torch.tensor([0.25, 0.75], dtype=ratios.dtype)).tolist()
    exact = plain.distances.mean() * plain.evaluations / other.distances.mean() / other.evaluations
    return float(exact), low, high


def _rows(problem: str, samples: dict[tuple[bool, Assignment, int], Sample]) -> list[Row]:
    plain = samples[False, "independent", 1]
    return [
        Row(
            problem,
            "Rao-Blackwell" if rao_blackwell else "sampled",
            assignment,
            base,
            sample.evaluations,
            float(sample.distances.mean()),
            float(sample.distances.mean()) * sample.evaluations,
            *_gain(plain, sample),
        )
        for (rao_blackwell, assignment, base), sample in samples.items()
    ]


def _table(problem: str, rows: list[Row]) -> Table:
    table = Table(
        "selection, levels, base", "evaluations", "variance", "gain", "quartiles", title=problem
    )
    for row in rows:
        table.add_row(
            f"{row.selection}, {row.levels}, {row.base}",
            f"{row.evaluations:.1f}",
            f"{row.variance:.4g}",
            f"{row.gain:.2f}",
            f"{row.gain_low:.2f} … {row.gain_high:.2f}",
        )
    return table


if __name__ == "__main__":
    run()
