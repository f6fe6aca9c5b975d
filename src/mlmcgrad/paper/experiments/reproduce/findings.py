"""The findings of a reproduction: numbers computed once from its runs, then shown by others.

`summary.json` contains them without the curves, whose values are in each run's `metrics.jsonl`.
Runs of different seeds spend different budgets, so their curves are first interpolated at common
places within the range that all of them cover, and then averaged. The band of a curve is the
minimum and the maximum over seeds: there are too few seeds for quantiles.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlmcgrad.levels import Geometric
from mlmcgrad.paper.experiments.reproduce.claims import Claim, evaluate, rate
from mlmcgrad.paper.experiments.reproduce.data import Array, Reproduction, TrainingRun
from mlmcgrad.paper.experiments.reproduce.settings import LABELS, OPTIMIZERS

QUANTITIES = {"gradient": "‖∇V(θ)‖²", "nll": "test NLL (nats per image)"}
AXES = {
    "epoch": "epochs",
    "evaluations": "network evaluations (millions)",
    "seconds": "seconds of training",
}
COSTS = {"evaluations": "evaluations per image", "seconds": "milliseconds"}
_HIGHEST = 64  # level; higher ones have a probability of 2^-64
_FEWEST = 5.0  # draws that a bar of the level histogram must expect
_COST_POINTS = 30
_RATE_POINTS = 60
_DATASETS = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10"}
_ABOUT = ("command", "commit", "seconds", "finished", "cores", "versions")
_PRIVATE = ("out", "source", "resume", "force")  # folders belong to one machine
_WINDOW = 0.9  # means over the last tenth of the iterations that all methods ran


@dataclass(frozen=True)
class Curve:
    """Mean, minimum and maximum over seeds at some places of an axis."""

    x: Array
    mean: Array
    low: Array
    high: Array
    seeds: int

    def at(self, where: Array | float) -> Array:
        """Interpolate the mean at other places, linearly in the logarithm of the axis."""
        return np.interp(np.log(where), np.log(self.x), self.mean)


@dataclass(frozen=True)
class RateCurve:
    """(log N)²/√N through the middle of the curves, where N are iterations of `method`."""

    method: str
    anchor: float  # the epoch at which it passes through their mean
    x: Array
    y: Array


@dataclass(frozen=True)
class Levels:
    """Shares of the levels 1, 2, … among all draws; the last one includes all higher levels."""

    level: list[int]
    used: list[float]  # share of draws whose chain was run
    beyond: list[float]  # share of draws above the truncation: their chain has length `base`
    law: list[float]
    draws: int


@dataclass(frozen=True)
class Curves:
    """All curves of one reproduction; those that no complete run has are left out."""

    tests: dict[tuple[str, str, str, str], Curve]  # by optimizer, quantity, axis and method
    rates: dict[tuple[str, str], RateCurve]  # by optimizer and axis
    costs: dict[tuple[str, str], Curve]  # evaluations per image, or milliseconds; by method
    levels: Levels | None


@dataclass(frozen=True)
class Diagnostics:
    """Noise and cost of a method's gradients at the last common iterations; means over seeds."""

    method: str
    optimizer: str
    iteration: int  # the last one that all methods ran
    truncation: float
    effective: float
    acceptance: float
    evaluations: float  # per image and iteration
    decoded_again: float | None  # states per image and iteration whose gradient was taken
    variance: float | None  # of one gradient estimate: E‖Ĥ‖² − ‖∇V‖²
    relative: float | None  # variance × evaluations, in units of BR-IWAE's


@dataclass(frozen=True)
class FinalTest:
    """The last test of one run."""

    method: str
    optimizer: str
    seed: int
    truncation: float
    nll: float
    nll_se: float | None
    gradient: float | None
    gradient_se: float | None
    evaluations: int
    seconds: float
    iteration: int


@dataclass(frozen=True)
class ReproductionFindings:
    """Claims, diagnostics, final tests, failures and curves of one reproduction."""

    name: str  # of its dataset; with its folder where two reproductions have the same dataset
    about: Mapping[str, Any]  # command, commit, time, versions, settings, and those of all runs
    seeds: int
    runs: int
    claims: tuple[Claim, ...]
    diagnostics: tuple[Diagnostics, ...]
    final: tuple[FinalTest, ...]
    failed: tuple[tuple[str, str], ...]  # names of runs without a result, and why
    curves: Curves

    def record(self) -> dict[str, Any]:
        """Return the findings as `summary.json` holds them."""
        shown = {name: value for name, value in vars(self).items() if name != "curves"}
        # JSON has no infinity: an interval without an end has None there.
        record: dict[str, Any] = json.loads(
            json.dumps(shown, default=vars), parse_constant=lambda _: None
        )
        return record


def find(reproductions: Sequence[Reproduction]) -> list[ReproductionFindings]:
    """Compute the findings of reproductions that are shown together."""
    names = [_DATASETS.get(each.dataset, each.dataset) for each in reproductions]
    often = Counter(names)
    return [
        ReproductionFindings(
            name=f"{name} ({each.folder.resolve().name})" if often[name] > 1 else name,
            about=_about(each),
            seeds=len({run.seed for run in each.runs}),
            runs=len(each.runs),
            claims=evaluate(each),
            diagnostics=diagnose(each),
            final=tuple(
                _final(run)
                for optimizer in OPTIMIZERS
                for method in LABELS
                for run in each.of(method, optimizer)
                if run.tests
            ),
            failed=tuple((r.name, r.error or "not finished") for r in each.runs if not r.complete),
            curves=measure_curves(each),
        )
        for name, each in zip(names, reproductions, strict=True)
    ]


def _about(reproduction: Reproduction) -> dict[str, Any]:
    own, every = reproduction.about["settings"], [run.settings for run in reproduction.runs]
    shared = {
        key: value
        for key, value in (every[0] if every else {}).items()
        if key not in own and all(settings.get(key) == value for settings in every)
    }
    about = {key: reproduction.about[key] for key in _ABOUT if key in reproduction.about}
    for name, settings in (("settings", own), ("training", shared)):
        about[name] = {key: settings[key] for key in settings if key not in _PRIVATE}
    return about


def _final(run: TrainingRun) -> FinalTest:
    last = run.tests[-1]
    numbers: Any = [last.get(field.name) for field in dataclasses.fields(FinalTest)[4:]]
    truncation = run.truncation(last["iteration"])
    return FinalTest(run.method, run.optimizer, run.seed, truncation, *numbers)


def diagnose(reproduction: Reproduction) -> tuple[Diagnostics, ...]:
    """Return a row for every optimizer and method, all at the same iterations."""
    rows: list[Diagnostics] = []
    for optimizer in OPTIMIZERS:
        runs = {
            method: [run for run in reproduction.of(method, optimizer) if run.lines and run.tests]
            for method in LABELS
        }
        last = [run.lines[-1]["iteration"] for some in runs.values() for run in some]
        by_method = {method: _row(some, min(last)) for method, some in runs.items() if some}
        base = by_method.get("br")
        for row in by_method.values():
            if base and base.variance and row.variance is not None:
                ratio = row.variance * row.evaluations / (base.variance * base.evaluations)
                row = dataclasses.replace(row, relative=ratio)
            rows.append(row)
    return tuple(rows)


def _row(runs: list[TrainingRun], end: int) -> Diagnostics:
    per_seed = [_window(run, end) for run in runs]
    mean = {name: float(np.mean([row[name] for row in per_seed])) for name in per_seed[0]}
    mean["variance"] = mean.pop("squared") - mean.pop("gradient")
    numbers: dict[str, Any] = {k: v if math.isfinite(v) else None for k, v in mean.items()}
    numbers |= {"method": runs[0].method, "optimizer": runs[0].optimizer, "iteration": end}
    return Diagnostics(**numbers, truncation=runs[0].truncation(end), relative=None)


def _window(run: TrainingRun, end: int) -> dict[str, float]:
    iteration = run.line("iteration")
    inside = (iteration > _WINDOW * end) & (iteration <= end)
    inside |= iteration == iteration[iteration <= end].max(initial=iteration[0])
    first = int(np.argmax(inside))
    before = run.lines[first - 1] if first else {}
    after = run.lines[int(np.flatnonzero(inside)[-1])]
    images = (after["iteration"] - before.get("iteration", 0)) * run.settings["batch_size"]

    def spent(name: str) -> float:
        return float(after.get(name, math.nan) - before.get(name, 0)) / images

    known = run.tested("gradient")
    return {
        "effective": float(run.line("effective")[inside].mean()),
        "acceptance": float(run.line("acceptance")[inside].mean()),
        "squared": float(run.line("theta_squared")[inside].mean()),
        "gradient": float(run.at("gradient", "iteration", end)) if known else math.nan,
        "evaluations": spent("evaluations"),
        "decoded_again": spent("loss_evaluations"),
    }


def measure_curves(reproduction: Reproduction) -> Curves:
    """Compute all curves of a reproduction."""
    curves = Curves({}, {}, {}, count_levels(reproduction))
    for optimizer in OPTIMIZERS:
        runs = {method: reproduction.of(method, optimizer) for method in LABELS}
        for axis in AXES:
            for quantity in QUANTITIES:
                for method, some in runs.items():
                    if (curve := average_tests(some, quantity, axis)) is not None:
                        curves.tests[optimizer, quantity, axis, method] = curve
            if (line := _rate(runs, axis)) is not None:
                curves.rates[optimizer, axis] = line
    for method in LABELS:
        for name in COSTS:
            if (curve := average_costs(reproduction.of(method), name)) is not None:
                curves.costs[name, method] = curve
    return curves


def average_tests(runs: Sequence[TrainingRun], name: str, axis: str) -> Curve | None:
    """Average a column of the tests against an axis; None if no run has that column."""
    runs = [run for run in runs if run.tested(name)]
    if not runs:
        return None
    axes = [run.test(axis) for run in runs]
    begin, end = max(a[0] for a in axes), min(a[-1] for a in axes)
    # With a single test there may be no common range: use the mean place.
    grid = np.unique(np.clip(axes[0], begin, end)) if begin <= end else np.array([np.mean(axes)])
    return _over_seeds(grid, [run.at(name, axis, grid.tolist()) for run in runs])


def average_costs(runs: Sequence[TrainingRun], name: str) -> Curve | None:
    """Average the cost of an iteration in pieces: evaluations per image, or milliseconds."""
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


def _rate(runs: dict[str, list[TrainingRun]], axis: str) -> RateCurve | None:
    """Scale the rate to the mean of the methods at the geometric middle of their common range.

    N counts iterations, so against a budget the rate is drawn for the iterations of one method.
    """
    every = {method: average_tests(some, "gradient", "iteration") for method, some in runs.items()}
    curves = {method: curve for method, curve in every.items() if curve is not None}
    guide = next((m for m in ("mlmc", *reversed(LABELS)) if m in curves), None)
    if guide is None:
        return None
    begin = max(curve.x[0] for curve in curves.values())
    end = min(curve.x[-1] for curve in curves.values())
    middle = np.array(math.sqrt(begin * end))
    height = float(np.mean([curve.at(middle) for curve in curves.values()]))
    place, epoch = (average_tests(runs[guide], name, "iteration") for name in (axis, "epoch"))
    if begin > end or height <= 0.0 or middle <= 1.0 or place is None or epoch is None:
        return None
    first, last = np.maximum(2.0, curves[guide].x[[0, -1]])
    n = np.geomspace(first, last, _RATE_POINTS)
    y = height / rate(middle) * rate(n)
    # Epochs and budgets between tests are linear in the iterations.
    anchor = float(np.interp(middle, epoch.x, epoch.mean))
    return RateCurve(guide, anchor, np.interp(n, place.x, place.mean), y)


def count_levels(reproduction: Reproduction) -> Levels | None:
    """Count the levels that all MLMC runs drew, within and above the truncation T_n."""
    counts = np.zeros((2, _HIGHEST + 1), dtype=np.int64)
    for run in reproduction.runs:
        if run.method not in ("mlmc", "mlmc-rb"):
            continue
        for row in run.lines:
            # κ_n of the line's last iteration stands for all iterations of the line.
            truncation = run.truncation(row["iteration"])
            highest = Geometric().truncation_level(truncation, run.settings["base"])
            for level, count in row["levels"].items():
                counts[int(int(level) > highest), min(int(level), _HIGHEST)] += count
    draws = int(counts.sum())
    if not draws:
        return None
    largest = int(np.flatnonzero(counts.any(0))[-1])
    last = min(largest, max(1, math.floor(math.log2(draws / _FEWEST)) + 1))
    counts[:, last] = counts[:, last:].sum(1)
    used, beyond = (counts[:, 1 : last + 1] / draws).tolist()
    law = [0.5 ** min(k, last - 1) for k in range(1, last + 1)]
    return Levels(list(range(1, last + 1)), used, beyond, law, draws)


def _over_seeds(x: Array, values: list[Array]) -> Curve:
    table = np.stack(values)  # (seeds, places)
    return Curve(x, table.mean(0), table.min(0), table.max(0), len(values))
