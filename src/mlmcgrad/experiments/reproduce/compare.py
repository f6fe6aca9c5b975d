"""Two runs compared at equal iterations or budgets, and how fast the gradient of one falls."""

from __future__ import annotations

import math

import numpy as np

from mlmcgrad.diagnostics.slopes import fit_power
from mlmcgrad.experiments.reproduce.gather import Array, TrainingRun


def rate(n: Array) -> Array:
    """(log n)²/√n, the rate of the paper's corollaries."""
    return np.log(n) ** 2 / np.sqrt(n)


def decay(run: TrainingRun, last: float, against_rate: bool = False) -> tuple[float, int]:
    """Slope of log S against log n up to n = last, and how many tests with S ≤ 0 were left out.

    Against the rate, S is divided by (log n)²/√n first; that falls only from n = e⁴ ≈ 55, and the
    fit begins there. The slope is NaN if fewer than two tests can be used.
    """
    n, s = run.test("iteration"), run.test("gradient")
    use = (n >= math.exp(4.0)) & (n <= last) if against_rate else n <= last
    n, s = n[use], s[use]
    left_out = int((s <= 0.0).sum())
    if len(s) - left_out < 2:
        return math.nan, left_out
    return fit_power(n.tolist(), (s / rate(n) if against_rate else s).tolist()).slope, left_out


def common(run: TrainingRun, baseline: TrainingRun, axis: str) -> float:
    """The largest budget, or number of iterations, that both have reached."""
    return min(float(run.test(axis)[-1]), float(baseline.test(axis)[-1]))


def matched(run: TrainingRun, baseline: TrainingRun, name: str, axis: str) -> tuple[float, float]:
    """The difference at the largest budget that both have reached, and the baseline's value."""
    budget = common(run, baseline, axis)
    reference = float(baseline.at(name, axis, budget))
    return float(run.at(name, axis, budget)) - reference, reference


def iteration_at(run: TrainingRun, axis: str, budget: float) -> float:
    """The iteration at which a run has spent a budget, between tests linear in logarithms."""
    log_n = np.interp(math.log(budget), np.log(run.test(axis)), np.log(run.test("iteration")))
    return math.exp(float(log_n))


def reaches(run: TrainingRun, baseline: TrainingRun, axis: str) -> tuple[float, bool]:
    """Budget at which the NLL is that of the baseline's end, over the baseline's budget.

    If it never is, what was spent in all, and False.
    """
    goal, total = float(baseline.test("nll")[-1]), float(baseline.test(axis)[-1])
    nll, spent = run.test("nll"), np.log(run.test(axis))
    below = np.flatnonzero(nll <= goal)
    if not len(below):
        return float(run.test(axis)[-1]) / total, False
    i = int(below[0])
    if i == 0:
        return math.exp(spent[0]) / total, True
    share = (nll[i - 1] - goal) / (nll[i - 1] - nll[i])
    return math.exp(spent[i - 1] + share * (spent[i] - spent[i - 1])) / total, True
