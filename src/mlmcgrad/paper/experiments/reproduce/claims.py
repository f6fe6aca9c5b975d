"""The paper's claims on its experiments, checked against runs.

With S(n) = ‖∇V(θ_n)‖² and a method compared with a baseline, BR-IWAE, IWAE or IWAE-DReG:

    quantity   the number                                                        holds if it is
    decay      slope of log S against log n, method minus baseline               within ±1/4
    rate       slope of log S − log((log n)²/√n) against log n, of one method    below 0
    nll        test NLL, method minus baseline, at the largest budget that       below 0
               both have reached
    gradient   the same for S, relative to the baseline's                        below 0
    budget     what the method has spent when it reaches the test NLL that       below 1
               the baseline ends with, over what the baseline spent

±1/4 is half the exponent of the rate. The budget is the axis: iterations, network evaluations or
seconds of training. For equal iterations the paper says that BR-IWAE has the better NLL, so there
the claim holds if the number is above 0. Baselines other than BR-IWAE and methods other than
MLMC-IWAE are not in the paper.

Runs with the same seed start from the same parameters and see the same data, so they are paired.
Intervals are Student's over seeds, 95 %, for each claim separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy import stats

from mlmcgrad.paper.experiments.accuracy import fit_power
from mlmcgrad.paper.experiments.reproduce.data import Array, Reproduction, TrainingRun
from mlmcgrad.paper.experiments.reproduce.settings import OPTIMIZERS

Pair: TypeAlias = tuple[TrainingRun, TrainingRun]
Quantity: TypeAlias = Literal["decay", "rate", "nll", "gradient", "budget"]
Axis: TypeAlias = Literal["iteration", "evaluations", "seconds"]
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
SIMILAR = 0.25
BUDGETS: tuple[Axis, ...] = ("evaluations", "seconds")
# The baselines of each method.
BASELINES = {
    "mlmc": ("br", "iwae", "dreg"),
    "mlmc-rb": ("br", "iwae", "dreg"),
    "mlmc-is": ("iwae", "dreg"),
    "jsa": ("iwae", "dreg"),
    "dreg": ("iwae",),
}


@dataclass(frozen=True)
class Subject:
    """The subject of a claim, shared by the claims of both optimizers."""

    quantity: Quantity
    method: str
    baseline: str | None  # None for a rate, which is of one method
    axis: Axis


@dataclass(frozen=True)
class Claim(Subject):
    """A claim with its measured number and its verdict."""

    optimizer: str
    seeds: int  # for which there are both runs
    value: float | None  # None where no number can be given
    low: float | None  # 95 % confidence interval over seeds
    high: float | None
    verdict: str  # holds, does not hold, undecided
    reference: float | None = None  # test NLL of the baseline
    iterations: tuple[float, float] | None = None  # of method and baseline where they are compared
    truncations: tuple[float, float] | None = None  # T_n of both there
    left_out: int = 0  # tests with S ≤ 0, which have no logarithm
    unreached: int = 0  # seeds that ended above the baseline's final NLL,
    spent: float | None = None  # having spent this part of the baseline's budget, or more

    @property
    def subject(self) -> Subject:
        """The claim without optimizer and numbers."""
        return Subject(self.quantity, self.method, self.baseline, self.axis)


def evaluate(reproduction: Reproduction) -> tuple[Claim, ...]:
    """Evaluate every claim that the complete runs allow; claims about S only if S was measured."""
    claims: list[Claim] = []
    for optimizer in OPTIMIZERS:
        for method, baselines in BASELINES.items():
            for baseline in baselines:
                by_seed = {run.seed: run for run in reproduction.of(baseline, optimizer)}
                runs = [run for run in reproduction.of(method, optimizer) if run.seed in by_seed]
                claims += _compare([(run, by_seed[run.seed]) for run in runs]) if runs else ()
    return tuple(claims)


def _compare(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """Compare paired runs; with IWAE and IWAE-DReG, which the paper omits, only by the NLL."""
    with_br = pairs[0][1].method == "br"
    gradient = with_br and all(run.tested("gradient") for pair in pairs for run in pair)
    if gradient:
        yield _decay(pairs)
        yield _rate([run for run, _ in pairs])
        if pairs[0][0].method == "mlmc":  # once, not for both methods
            yield _rate([baseline for _, baseline in pairs])
    yield _nll(pairs, "iteration")
    for axis in BUDGETS:
        if gradient:
            yield _gradient(pairs, axis)
        yield _nll(pairs, axis)
        if with_br:
            yield _budget(pairs, axis)


def _decay(pairs: Sequence[Pair]) -> Claim:
    values, left_out = [], 0
    for pair in pairs:
        last = float(pair[1].test("iteration")[-1])
        (slope, first), (reference, second) = (decay(run, last) for run in pair)
        values.append(slope - reference)
        left_out += first + second
    return _claim("decay", pairs, "iteration", values, left_out=left_out)


def _rate(runs: Sequence[TrainingRun]) -> Claim:
    slopes = [decay(run, math.inf, against_rate=True) for run in runs]
    left_out = sum(count for _, count in slopes)
    values = [slope for slope, _ in slopes]
    return _claim("rate", [(run, None) for run in runs], "iteration", values, left_out=left_out)


def _nll(pairs: Sequence[Pair], axis: Axis) -> Claim:
    both = [matched(*pair, "nll", axis) for pair in pairs]
    reference = float(np.mean([value for _, value in both]))
    values = [difference for difference, _ in both]
    return _claim("nll", pairs, axis, values, reference=reference, **_places(pairs, axis))


def _gradient(pairs: Sequence[Pair], axis: Axis) -> Claim:
    """Divide by the baseline's mean over seeds: single estimates of S may be negative."""
    both = [matched(*pair, "gradient", axis) for pair in pairs]
    scale = float(np.mean([reference for _, reference in both]))
    values = [difference / scale for difference, _ in both] if scale > 0.0 else []
    return _claim("gradient", pairs, axis, values, **_places(pairs, axis))


def _budget(pairs: Sequence[Pair], axis: Axis) -> Claim:
    """Average geometrically: half the budget and twice the budget are equally far from equal."""
    ratios = [reaches(*pair, axis) for pair in pairs]
    unreached = [ratio for ratio, reached in ratios if not reached]
    if unreached:
        spent = min(unreached)
        failed = spent >= 1.0 and len(unreached) == len(ratios)
        claim = _claim("budget", pairs, axis, [], unreached=len(unreached), spent=spent)
        return replace(claim, verdict=FAILS if failed else UNDECIDED)
    claim = _claim("budget", pairs, axis, [math.log(ratio) for ratio, _ in ratios])
    value, low, high = (
        None if log is None else math.exp(log) for log in (claim.value, claim.low, claim.high)
    )
    return replace(claim, value=value, low=low, high=high)


def _claim(
    quantity: Quantity,
    pairs: Sequence[tuple[TrainingRun, TrainingRun | None]],
    axis: Axis,
    values: Sequence[float],
    **numbers: Any,
) -> Claim:
    run, baseline = pairs[0]
    subject = Subject(quantity, run.method, baseline.method if baseline else None, axis)
    value, low, high = student_interval(values)
    verdict = UNDECIDED if low is None or high is None else _verdict(subject, low, high)
    measured: dict[str, Any] = {"value": value, "low": low, "high": high, "verdict": verdict}
    measured |= {"optimizer": run.optimizer, "seeds": len(pairs)}
    return Claim(**vars(subject), **measured, **numbers)


def _places(pairs: Sequence[Pair], axis: Axis) -> dict[str, Any]:
    """Return the iterations at which the two are compared, mean over seeds, and T_n there."""
    n = [
        float(np.mean([iteration_at(pair[i], axis, common(*pair, axis)) for pair in pairs]))
        for i in (0, 1)
    ]
    truncations = tuple(run.truncation(count) for run, count in zip(pairs[0], n, strict=True))
    return {"iterations": tuple(n), "truncations": truncations}


def _verdict(subject: Subject, low: float, high: float) -> str:
    if subject.quantity == "decay":
        if low >= -SIMILAR and high <= SIMILAR:
            return HOLDS
        return FAILS if low > SIMILAR or high < -SIMILAR else UNDECIDED
    if (subject.quantity, subject.baseline, subject.axis) == ("nll", "br", "iteration"):
        low, high = -high, -low  # the paper says that here the baseline is better
    return HOLDS if high < 0.0 else FAILS if low > 0.0 else UNDECIDED


def rate(n: Array) -> Array:
    """Return (log n)²/√n, the rate of the paper's corollaries."""
    return np.log(n) ** 2 / np.sqrt(n)


def decay(run: TrainingRun, last: float, against_rate: bool = False) -> tuple[float, int]:
    """Return the slope of log S against log n up to n = last, and the number of tests with S ≤ 0.

    Tests with S ≤ 0 are left out. Against the rate, S is first divided by (log n)²/√n, which falls
    only for n > e⁴ ≈ 55, so the fit begins there. With fewer than two tests the slope is NaN.
    """
    n, s = run.test("iteration"), run.test("gradient")
    use = (n >= math.exp(4.0)) & (n <= last) if against_rate else n <= last
    n, s = n[use], s[use]
    left_out = int((s <= 0.0).sum())
    if len(s) - left_out < 2:
        return math.nan, left_out
    return fit_power(n.tolist(), (s / rate(n) if against_rate else s).tolist()).slope, left_out


def common(run: TrainingRun, baseline: TrainingRun, axis: str) -> float:
    """Return the largest budget, or number of iterations, that both runs have reached."""
    return min(float(run.test(axis)[-1]), float(baseline.test(axis)[-1]))


def matched(run: TrainingRun, baseline: TrainingRun, name: str, axis: str) -> tuple[float, float]:
    """Return the difference at the largest common budget, and the baseline's value there."""
    budget = common(run, baseline, axis)
    reference = float(baseline.at(name, axis, budget))
    return float(run.at(name, axis, budget)) - reference, reference


def iteration_at(run: TrainingRun, axis: str, budget: float) -> float:
    """Return the iteration at which a run has spent a budget, by log-log interpolation."""
    log_n = np.interp(math.log(budget), np.log(run.test(axis)), np.log(run.test("iteration")))
    return math.exp(float(log_n))


def reaches(run: TrainingRun, baseline: TrainingRun, axis: str) -> tuple[float, bool]:
    """Return the budget that reaches the baseline's final NLL, over the baseline's, and True.

    If the run never reaches it: the run's whole budget over the baseline's, and False.
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


def student_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the mean and Student's 95 % confidence interval for it, as (mean, low, high).

    The interval is None for fewer than two values; so is the mean if there are no values or one of
    them is not finite.

    Example:
        >>> mean, low, high = student_interval([1.0, 2.0, 3.0])
        >>> round(mean, 6), round(low, 3), round(high, 3)
        (2.0, -0.484, 4.484)
    """
    if not values or not all(map(math.isfinite, values)):
        return None, None, None
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - half, mean + half
