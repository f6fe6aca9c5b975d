"""What the paper says of its experiments, checked against runs.

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
the claim holds if the number is above 0. The other baselines, and the other methods than MLMC-IWAE,
are not in the paper.

Runs with the same seed start from the same parameters and see the same data, so they are paired.
Intervals are Student's over seeds, 95 %, for each claim on its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from mlmcgrad.experiments.reproduce.compare import common, decay, iteration_at, matched, reaches
from mlmcgrad.experiments.reproduce.gather import OPTIMIZERS, Reproduction, TrainingRun
from mlmcgrad.experiments.statistics import student_interval

Pair: TypeAlias = tuple[TrainingRun, TrainingRun]
Quantity: TypeAlias = Literal["decay", "rate", "nll", "gradient", "budget"]
Axis: TypeAlias = Literal["iteration", "evaluations", "seconds"]
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
SIMILAR = 0.25
BUDGETS: tuple[Axis, ...] = ("evaluations", "seconds")
# What each method is compared with.
BASELINES = {
    "mlmc": ("br", "iwae", "dreg"),
    "mlmc-rb": ("br", "iwae", "dreg"),
    "mlmc-is": ("iwae", "dreg"),
    "jsa": ("iwae", "dreg"),
    "dreg": ("iwae",),
}


@dataclass(frozen=True)
class Subject:
    """What a claim is about; the claims of both optimizers have the same subject."""

    quantity: Quantity
    method: str
    baseline: str | None  # None for a rate, which is of one method
    axis: Axis


@dataclass(frozen=True)
class Claim(Subject):
    """One claim, as measured."""

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
        """What is claimed, apart from the optimizer."""
        return Subject(self.quantity, self.method, self.baseline, self.axis)


def evaluate(reproduction: Reproduction) -> tuple[Claim, ...]:
    """All claims that the complete runs allow; on S only where it was measured."""
    claims: list[Claim] = []
    for optimizer in OPTIMIZERS:
        for method, baselines in BASELINES.items():
            for baseline in baselines:
                by_seed = {run.seed: run for run in reproduction.of(baseline, optimizer)}
                runs = [run for run in reproduction.of(method, optimizer) if run.seed in by_seed]
                claims += _compare([(run, by_seed[run.seed]) for run in runs]) if runs else ()
    return tuple(claims)


def _compare(pairs: Sequence[Pair]) -> Iterator[Claim]:
    """With IWAE and IWAE-DReG only the NLL: is it worth it at all? The paper does not ask."""
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
    """The difference relative to the baseline's mean: single estimates of S may be negative."""
    both = [matched(*pair, "gradient", axis) for pair in pairs]
    scale = float(np.mean([reference for _, reference in both]))
    values = [difference / scale for difference, _ in both] if scale > 0.0 else []
    return _claim("gradient", pairs, axis, values, **_places(pairs, axis))


def _budget(pairs: Sequence[Pair], axis: Axis) -> Claim:
    """The mean is geometric: half the budget and twice the budget are equally far from equal."""
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
    """At which iterations, and hence T_n, the two are compared, in the mean over seeds."""
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
