"""T_n of a training that is planned: a schedule, and the estimator of each T.

**T_n.** With a truncation s, training converges to the point where the mean of its
estimator is 0; there the gradient equals the bias. The distance still to go is measured by the mean
itself: m_s = ‖E[Ĥ_s]‖² at iteration n_0, where the plan is made, and m_s n_0 / n later, as for
constant step sizes. After n iterations of N chains the squared error is

    bias_s² + (variance_s / N + m_s n_0) / n,

because noise is averaged over all of them. For the same evaluations a longer truncation l has only
n cost_s / cost_l iterations to reduce both noise and distance, so it is better for n above

    n* = (cost_l (variance_l + F) − cost_s (variance_s + F)) / (N cost_s (bias_s² − bias_l²)),
    F = N n_0 m_s.

T_n rises from the shortest T to the first one that is better (of several, the best), and so on.
With F = 0 it is the formula for a gradient at a fixed θ, averaged over B = n N cost_s evaluations.

**The estimator of each T.** Every estimator with the truncation T has the bias of T (averages with
a burn-in are left out: their bias is known to an order of magnitude only). So for each T, and for
all B, the best estimator has the smallest

    cost × (variance + F).

Far from convergence it is the cheapest, because iterations count; near the end it is the one with
the smallest work × variance, where a larger base or another continuation often gains a factor of
two. Only the part of m that exceeds the noise of the pilot is used (`Decay.left`). A pilot cannot
know the tails of differences that it has not measured, so T ends soon after its longest simulation.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

from mlmcgrad._checks import whole
from mlmcgrad.diagnostics._decay import Decay
from mlmcgrad.estimators import Average, Estimator, Stages
from mlmcgrad.schedules import Schedule

if TYPE_CHECKING:
    from mlmcgrad.diagnostics._plan import Predicted

_SHOWN = 8  # steps of a schedule that are printed
NEVER = 2**53  # iterations
_MOST = 2.0**20  # T
_BEYOND = 2  # levels after the pilot's last whose variance is used


@dataclass(frozen=True)
class Truncations:
    """A schedule of T that rises in steps.

    Attributes:
        steps: first iteration and T of each step.

    Example:
        >>> schedule = Truncations(((1, 2.0), (100, 8.0)))
        >>> schedule(99), schedule(100)
        (2.0, 8.0)
    """

    steps: tuple[tuple[int, float], ...]

    def __call__(self, n: SupportsIndex) -> float:
        """Return T at iteration n."""
        number = whole(n, "n")
        return self.steps[bisect_right(self.steps, number, key=lambda step: step[0]) - 1][1]

    @classmethod
    def of(cls, schedule: Schedule) -> Truncations:
        """Return the powers of two that a non-decreasing schedule has reached at each n.

        Example:
            >>> from mlmcgrad import schedules
            >>> Truncations.of(schedules.power(1.0, 0.5)).steps[:3]
            ((1, 1.0), (4, 2.0), (16, 4.0))
        """
        if isinstance(schedule, Truncations):
            return schedule
        steps = [(1, 2.0 ** math.floor(math.log2(max(1.0, schedule(1)))))]
        while (further := 2.0 * steps[-1][1]) <= min(_MOST, schedule(NEVER)):
            steps.append((bisect_left(range(NEVER), further, lo=1, key=schedule), further))
        return cls(tuple(steps))

    def longer(self, other: Truncations) -> Truncations:
        """Return the maximum of two schedules.

        Example:
            >>> Truncations(((1, 2.0), (9, 4.0))).longer(Truncations(((1, 1.0), (5, 4.0)))).steps
            ((1, 2.0), (5, 4.0))
        """
        steps: list[tuple[int, float]] = []
        for n in sorted({n for n, _ in (*self.steps, *other.steps)}):
            truncation = max(self(n), other(n))
            if not steps or truncation > steps[-1][1]:
                steps.append((n, truncation))
        return Truncations(tuple(steps))

    def __str__(self) -> str:
        first, *later = self.steps
        parts = [f"T = {first[1]:g}", *(f"{t:g} from n = {n}" for n, t in later)]
        return ", ".join(parts if len(parts) <= _SHOWN else [*parts[: _SHOWN - 1], "…"])


@dataclass(frozen=True)
class FamilyMember:
    """The estimator for one truncation."""

    truncation: float
    predicted: Predicted
    left: float  # ‖E[Ĥ]‖², the squared distance of the training from convergence with this T


def family(
    candidates: Iterable[Predicted], decay: Decay, *, simulations: int, present: float = 1.0
) -> list[FamilyMember]:
    """Return the best estimator for each T from the present one, after N n_0 `simulations`."""

    def work(each: Predicted) -> float:
        return each.cost * (each.variance + simulations * decay.left(_level(each.estimator)))

    best: dict[int, Predicted] = {}
    for each in sorted(candidates, key=work):
        measured = _level(each.estimator) <= decay.highest + _BEYOND
        if measured and not getattr(each.estimator, "burn_in", 0):
            best.setdefault(each.estimator.longest(), each)
    first = min(present, max(best))
    return [
        FamilyMember(float(t), best[t], decay.left(_level(best[t].estimator)))
        for t in sorted(best)
        if t >= first
    ]


def stages(members: Sequence[FamilyMember], schedule: Truncations) -> Stages:
    """Return the estimators of a family for the T_n of a schedule.

    For a T of an earlier schedule that the family does not contain, the estimator of the next
    shorter T is used with the truncation replaced.
    """

    def at(truncation: float) -> Estimator:
        shorter = [each for each in members if each.truncation <= truncation]
        estimator = shorter[-1].predicted.estimator
        if estimator.longest() == truncation:
            return estimator
        if isinstance(estimator, Average):
            return Average(truncation)
        return dataclasses.replace(estimator, truncation=truncation)  # type: ignore[type-var]

    return Stages(tuple((n, at(truncation)) for n, truncation in schedule.steps))


def _level(estimator: Estimator) -> int:
    return estimator.longest().bit_length() - 1


def truncations(members: Sequence[FamilyMember], chains: int, iteration: int) -> Truncations:
    """Return T_n for a training with N = `chains` that is planned at n_0 = `iteration`.

    The members begin with the shortest T. Iteration 0 ignores the distance from convergence.
    """
    start = max(1, iteration)
    now, n, steps = 0, start, [(1, members[0].truncation)]
    while now + 1 < len(members):
        present = members[now]
        when = [_better(present, later, chains, iteration) for later in members[now + 1 :]]
        first = min(when)
        if first > NEVER:
            break
        n = max(n, math.ceil(first))
        # Of those that are better by then, the best: several may be better at once.
        able = [i for i, each in enumerate(when, now + 1) if each <= n]
        now = min(able, key=lambda i: (_error(members[i], present, n, chains, iteration), -i))
        begin = 1 if n == start else n
        if steps[-1][0] == begin:
            steps.pop()
        steps.append((begin, members[now].truncation))
    return Truncations(tuple(steps))


def _error(each: FamilyMember, present: FamilyMember, n: int, chains: int, iteration: int) -> float:
    """Return the squared error after the evaluations of n iterations with the present estimator."""
    noise = each.predicted.variance / chains + iteration * present.left
    return each.predicted.bias.value + noise * each.predicted.cost / (n * present.predicted.cost)


def _better(short: FamilyMember, long: FamilyMember, chains: int, iteration: int) -> float:
    """Return n*, above which the second is better."""
    left = chains * iteration * short.left
    more = long.predicted.cost * (long.predicted.variance + left)
    more -= short.predicted.cost * (short.predicted.variance + left)
    less = short.predicted.bias.value - long.predicted.bias.value
    return crossing(more, chains * short.predicted.cost * less)


def crossing(more: float, less: float) -> float:
    """Return more / less, above which less bias pays: 0 if it always does, infinite if never."""
    if more <= 0.0:
        return 0.0 if less >= 0.0 else math.inf
    return more / less if less > 0.0 else math.inf
