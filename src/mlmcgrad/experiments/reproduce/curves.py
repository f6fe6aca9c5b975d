"""What the figures of a reproduction draw, as numbers: means and bands over seeds.

Runs of different seeds spend different budgets, so their curves are first brought to common places
within the range that all of them cover, and only then averaged. The band is the smallest and the
largest of the seeds: with a handful of them anything else would promise too much.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlmcgrad.experiments.reproduce.compare import rate
from mlmcgrad.experiments.reproduce.gather import (
    LABELS,
    OPTIMIZERS,
    Array,
    Reproduction,
    TrainingRun,
)
from mlmcgrad.levels import Geometric

QUANTITIES = {"gradient": "‖∇V(θ)‖²", "nll": "test NLL (nats per image)"}
AXES = {
    "epoch": "epochs",
    "evaluations": "network evaluations (millions)",
    "seconds": "seconds of training",
}
COSTS = {"evaluations": "evaluations per image", "seconds": "milliseconds"}
_FEWEST = 5.0  # draws that a bar of the level histogram must expect
_COST_POINTS = 30
_RATE_POINTS = 60


@dataclass(frozen=True)
class Curve:
    """Mean over seeds at some places of an axis, and the smallest and largest of them."""

    x: Array
    mean: Array
    low: Array
    high: Array
    seeds: int

    def at(self, where: Array | float) -> Array:
        """The mean at other places, between its points linear in the logarithm of the axis."""
        return np.interp(np.log(where), np.log(self.x), self.mean)


@dataclass(frozen=True)
class Rate:
    """(log N)²/√N, scaled to pass through the middle of the curves, with N as in `method`."""

    method: str
    anchor: float  # the epoch at which it passes through their mean
    x: Array
    y: Array


@dataclass(frozen=True)
class Levels:
    """Shares of the levels 1, 2, … among all draws; the last one stands for all that follow."""

    level: list[int]
    used: list[float]  # share of draws whose chain was run
    beyond: list[float]  # share of draws above the truncation: their chain has length `base`
    law: list[float]
    draws: int


@dataclass(frozen=True)
class Curves:
    """All that is drawn of one reproduction; what no complete run has is left out."""

    tests: dict[tuple[str, str, str, str], Curve]  # by optimizer, quantity, axis and method
    rates: dict[tuple[str, str], Rate]  # by optimizer and axis
    costs: dict[tuple[str, str], Curve]  # evaluations per image, or milliseconds; by method
    levels: Levels | None


def measure(reproduction: Reproduction) -> Curves:
    """All curves of a reproduction."""
    curves = Curves({}, {}, {}, levels(reproduction))
    for optimizer in OPTIMIZERS:
        runs = {method: reproduction.of(method, optimizer) for method in LABELS}
        for axis in AXES:
            for quantity in QUANTITIES:
                for method, some in runs.items():
                    if (curve := tests(some, quantity, axis)) is not None:
                        curves.tests[optimizer, quantity, axis, method] = curve
            if (line := _rate(runs, axis)) is not None:
                curves.rates[optimizer, axis] = line
    for method in LABELS:
        for name in COSTS:
            if (curve := cost(reproduction.of(method), name)) is not None:
                curves.costs[name, method] = curve
    return curves


def tests(runs: Sequence[TrainingRun], name: str, axis: str) -> Curve | None:
    """A column of the tests against an axis; None if no run has that column."""
    runs = [run for run in runs if run.tested(name)]
    if not runs:
        return None
    axes = [run.test(axis) for run in runs]
    begin, end = max(a[0] for a in axes), min(a[-1] for a in axes)
    # With a single test there may be no common range: then the values belong to the mean place.
    grid = np.unique(np.clip(axes[0], begin, end)) if begin <= end else np.array([np.mean(axes)])
    return _over_seeds(grid, [run.at(name, axis, grid.tolist()) for run in runs])


def cost(runs: Sequence[TrainingRun], name: str) -> Curve | None:
    """What an iteration costs, averaged in pieces: evaluations per image, or milliseconds."""
    runs = [run for run in runs if len(run.lines) > 1]
    if not runs:
        return None
    iterations = [run.line("iteration") for run in runs]
    begin, end = max(i[0] for i in iterations), min(i[-1] for i in iterations)
    if begin >= end:
        return None
    # Edges are iterations that have a line, so that averaging is the only smoothing.
    wanted = np.geomspace(begin, end, _COST_POINTS)
    inside = iterations[0][(begin <= iterations[0]) & (iterations[0] <= end)]
    edges = np.unique(inside[np.abs(inside - wanted[:, None]).argmin(1)])
    if len(edges) < 2:
        return None
    unit = 1.0 / runs[0].settings["batch_size"] if name == "evaluations" else 1e3
    spent = [np.interp(edges, i, run.line(name)) for i, run in zip(iterations, runs, strict=True)]
    means = [unit * np.diff(s) / np.diff(edges) for s in spent]
    return _over_seeds(np.sqrt(edges[1:] * edges[:-1]), means)


def _rate(runs: dict[str, list[TrainingRun]], axis: str) -> Rate | None:
    """The rate through the mean of the methods in the geometric middle of what all of them cover.

    N counts iterations, so against a budget the rate is drawn for the iterations of one method.
    """
    every = {method: tests(some, "gradient", "iteration") for method, some in runs.items()}
    curves = {method: curve for method, curve in every.items() if curve is not None}
    guide = next((m for m in ("mlmc", *reversed(LABELS)) if m in curves), None)
    if guide is None:
        return None
    begin = max(curve.x[0] for curve in curves.values())
    end = min(curve.x[-1] for curve in curves.values())
    middle = np.array(math.sqrt(begin * end))
    height = float(np.mean([curve.at(middle) for curve in curves.values()]))
    place, epoch = (tests(runs[guide], name, "iteration") for name in (axis, "epoch"))
    if begin > end or height <= 0.0 or middle <= 1.0 or place is None or epoch is None:
        return None
    first, last = np.maximum(2.0, curves[guide].x[[0, -1]])
    n = np.geomspace(first, last, _RATE_POINTS)
    y = height / rate(middle) * rate(n)
    # Epochs and budgets between tests are linear in the iterations.
    anchor = float(np.interp(middle, epoch.x, epoch.mean))
    return Rate(guide, anchor, np.interp(n, place.x, place.mean), y)


def levels(reproduction: Reproduction) -> Levels | None:
    """The levels that all MLMC runs drew, and which of them the truncation T_n let through."""
    used: Counter[int] = Counter()
    beyond: Counter[int] = Counter()
    for run in reproduction.runs:
        if run.method not in ("mlmc", "mlmc-rb"):
            continue
        for row in run.lines:
            # A line's levels are judged by the κ_n of its last iteration.
            truncation = run.truncation(row["iteration"])
            highest = Geometric().truncation_level(truncation, run.settings["base"])
            for level, count in row["levels"].items():
                (used if int(level) <= highest else beyond)[int(level)] += count
    draws = used.total() + beyond.total()
    if not draws:
        return None
    last = min(max(used | beyond), max(1, math.floor(math.log2(draws / _FEWEST)) + 1))
    level = list(range(1, last + 1))
    law = [0.5 ** min(k, last - 1) for k in level]
    return Levels(level, _shares(used, level, draws), _shares(beyond, level, draws), law, draws)


def _shares(counts: Counter[int], level: list[int], draws: int) -> list[float]:
    return [sum(n for k, n in counts.items() if min(k, level[-1]) == j) / draws for j in level]


def _over_seeds(x: Array, values: list[Array]) -> Curve:
    table = np.stack(values)  # (seeds, places)
    return Curve(x, table.mean(0), table.min(0), table.max(0), len(values))
