"""What the figures of a reproduction draw, as numbers: means and bands over seeds.

Runs of different seeds spend different budgets, so their curves are first brought to common places
within the range that all of them cover, and only then averaged. The band is the smallest and the
largest of the seeds: with a handful of them anything else would promise too much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mlmcgrad.experiments.reproduce.gather import Array, Reproduction, TrainingRun, interpolate

_FEWEST = 5.0  # draws that a bar of the level histogram must expect
_COST_POINTS = 30


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
class Levels:
    """Shares of the levels 1, 2, … among all draws; the last one stands for all that follow."""

    level: list[int]
    used: list[float]  # share of draws whose chain was run
    beyond: list[float]  # share of draws above the truncation: their chain has length `base`
    law: list[float]
    draws: int


def tests(runs: Sequence[TrainingRun], name: str, axis: str) -> Curve | None:
    """A column of the tests against an axis; None if no run has that column."""
    runs = [run for run in runs if run.tests and all(name in row for row in run.tests)]
    if not runs:
        return None
    axes = [run.test(axis) for run in runs]
    begin, end = max(a[0] for a in axes), min(a[-1] for a in axes)
    # With a single test there may be no common range: then the values belong to the mean place.
    grid = np.unique(np.clip(axes[0], begin, end)) if begin <= end else np.array([np.mean(axes)])
    return _over_seeds(grid, [interpolate(run, name, axis, grid.tolist()) for run in runs])


def cost(runs: Sequence[TrainingRun], name: str) -> Curve | None:
    """What one iteration adds to a column of the lines, against iterations; averaged in pieces."""
    runs = [run for run in runs if len(run.lines) > 1]
    if not runs:
        return None
    iterations = [run.line("iteration") for run in runs]
    begin, end = max(i[0] for i in iterations), min(i[-1] for i in iterations)
    if begin >= end:
        return None
    # Edges are iterations that have a line, so that nothing is smoothed but by averaging.
    wanted = np.geomspace(begin, end, _COST_POINTS)
    inside = iterations[0][(begin <= iterations[0]) & (iterations[0] <= end)]
    edges = np.unique(inside[np.abs(inside - wanted[:, None]).argmin(1)])
    if len(edges) < 2:
        return None
    spent = [np.interp(edges, i, run.line(name)) for i, run in zip(iterations, runs, strict=True)]
    return _over_seeds(
        np.sqrt(edges[1:] * edges[:-1]), [np.diff(s) / np.diff(edges) for s in spent]
    )


def rate(iterations: Array) -> Array:
    """(log N)²/√N, the rate of the paper's corollaries."""
    return np.log(iterations) ** 2 / np.sqrt(iterations)


def anchor(curves: Iterable[Curve]) -> tuple[float, float] | None:
    """The place (in the geometric middle of what all curves cover) and height of their mean.

    None if there is no common range, or the mean there is not positive.
    """
    curves = list(curves)
    begin = max((c.x[0] for c in curves), default=math.inf)
    end = min((c.x[-1] for c in curves), default=-math.inf)
    if begin > end:
        return None
    middle = math.sqrt(begin * end)
    height = float(np.mean([c.at(middle) for c in curves]))
    return (middle, height) if height > 0.0 and middle > 1.0 else None


def levels(reproduction: Reproduction) -> Levels | None:
    """The levels that all MLMC runs drew, and which of them the truncation T_n let through."""
    used: dict[int, int] = {}
    beyond: dict[int, int] = {}
    for run in reproduction.runs:
        if run.method not in ("mlmc", "mlmc-rb"):
            continue
        for row in run.lines:
            highest = truncation_level(run, row["iteration"])
            for level, count in row["levels"].items():
                which = used if int(level) <= highest else beyond
                which[int(level)] = which.get(int(level), 0) + count
    draws = sum(used.values()) + sum(beyond.values())
    if not draws:
        return None
    last = max(1, math.floor(math.log2(draws / _FEWEST)) + 1)
    last = min(last, max(used | beyond))
    level = list(range(1, last + 1))
    return Levels(
        level,
        [_share(used, k, last) / draws for k in level],
        [_share(beyond, k, last) / draws for k in level],
        [0.5**k if k < last else 0.5 ** (last - 1) for k in level],
        draws,
    )


def truncation(run: TrainingRun, iteration: float) -> float:
    """T_n of a run; 1 for IWAE, whose chains have one step."""
    if run.method == "iwae":
        return 1.0
    scale, exponent = run.settings["truncation_scale"], run.settings["truncation_exponent"]
    return float(scale * iteration**exponent)


def truncation_level(run: TrainingRun, iteration: int) -> int:
    """κ_n = ⌊log2(T_n / base)⌋; a line's levels are judged by the T_n of its last iteration."""
    ratio = truncation(run, iteration) / run.settings["base"]
    return max(0, math.floor(math.log2(ratio) + 1e-12))


def _share(counts: dict[int, int], level: int, last: int) -> int:
    if level < last:
        return counts.get(level, 0)
    return sum(count for k, count in counts.items() if k >= last)


def _over_seeds(x: Array, values: list[Array]) -> Curve:
    table = np.stack(values)  # (seeds, places)
    return Curve(x, table.mean(0), table.min(0), table.max(0), len(values))


__all__ = ["Curve", "Levels", "anchor", "cost", "levels", "rate", "tests", "truncation"]
