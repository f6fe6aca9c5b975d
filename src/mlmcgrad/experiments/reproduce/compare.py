"""Two runs compared, at equal iterations or at equal budgets, and what seeds say of a number."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from mlmcgrad.experiments.reproduce.gather import Array, TrainingRun, interpolate

_CONFIDENCE = 0.95


def interval(values: list[float]) -> tuple[float | None, float | None, float | None]:
    """Mean and Student's 95 % interval; no interval from fewer than two values."""
    finite = np.array(values, dtype=np.float64)
    if not len(finite) or not bool(np.isfinite(finite).all()):
        return None, None, None
    mean = float(finite.mean())
    if len(finite) < 2:
        return mean, None, None
    error = float(finite.std(ddof=1)) / math.sqrt(len(finite))
    half = float(stats.t.ppf(0.5 + _CONFIDENCE / 2.0, len(finite) - 1)) * error
    return mean, mean - half, mean + half


def decay(run: TrainingRun, last: float, against_rate: bool = False) -> tuple[float, int]:
    """Slope of log S against log n up to n = last, and how many tests with S ≤ 0 were left out.

    Against the rate, log((log n)²/√n) is subtracted first; that falls only from n = e⁴ ≈ 55 on,
    and the fit begins there.
    """
    n, s = run.test("iteration"), run.test("gradient")
    use = n <= last
    if against_rate:
        use &= n >= math.exp(4.0)
    lost = int((use & (s <= 0.0)).sum())
    use &= s > 0.0
    if use.sum() < 2:
        return math.nan, lost
    log_n = np.log(n[use])
    y = np.log(s[use]) - (log_rate(n[use]) if against_rate else 0.0)
    centred = log_n - log_n.mean()
    return float(centred @ y / (centred @ centred)), lost


def log_rate(n: Array) -> Array:
    """Log of (log n)²/√n, the rate of the paper's corollaries."""
    return 2.0 * np.log(np.log(n)) - 0.5 * np.log(n)


def at_end(run: TrainingRun, baseline: TrainingRun, name: str) -> float:
    """The difference after as many iterations as the baseline has."""
    last = float(baseline.test("iteration")[-1])
    return float(interpolate(run, name, "iteration", last)) - float(baseline.test(name)[-1])


def common(run: TrainingRun, baseline: TrainingRun, axis: str) -> float:
    """The largest budget that both have spent."""
    return min(float(run.test(axis)[-1]), float(baseline.test(axis)[-1]))


def matched(run: TrainingRun, baseline: TrainingRun, name: str, axis: str) -> tuple[float, float]:
    """The difference at the largest budget that both have spent, and the baseline's value there."""
    budget = common(run, baseline, axis)
    theirs = float(interpolate(baseline, name, axis, budget))
    return float(interpolate(run, name, axis, budget)) - theirs, theirs


def reaches(run: TrainingRun, baseline: TrainingRun, axis: str) -> tuple[float, bool]:
    """Budget at which the NLL is that of the baseline's end, over the baseline's budget.

    If it never is, what was spent in all, and False.
    """
    goal, whole = float(baseline.test("nll")[-1]), float(baseline.test(axis)[-1])
    nll, spent = run.test("nll"), np.log(run.test(axis))
    below = np.flatnonzero(nll <= goal)
    if not len(below):
        return float(run.test(axis)[-1]) / whole, False
    i = int(below[0])
    if i == 0:
        return float(math.exp(spent[0])) / whole, True
    share = (nll[i - 1] - goal) / (nll[i - 1] - nll[i])
    return math.exp(spent[i - 1] + share * (spent[i] - spent[i - 1])) / whole, True


def longest(run: TrainingRun, n: float) -> float:
    """T_n, which BR and MLMC round down to what they can use; the one step of IWAE is 1."""
    if run.method == "iwae":
        return 1.0
    return float(run.settings["truncation_scale"] * n ** run.settings["truncation_exponent"])


__all__ = ["at_end", "common", "decay", "interval", "log_rate", "longest", "matched", "reaches"]
