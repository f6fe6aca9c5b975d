"""T_n of a training, from a plan: cheap at first, long when the bias begins to matter.

With a truncation s a training goes to where the mean of its estimator is 0, and there the gradient
is what the bias is. How far it has come says the mean itself: m_s = ‖E[Ĥ_s]‖² where the plan is
made, at iteration n_0, and m_s n_0 / n later, as for step sizes that are constant. After n
iterations of N chains the squared error is

    bias_s² + (variance_s / N + m_s n_0) / n,

noise being averaged over all of them. A longer truncation l has, for the same evaluations, only
n cost_s / cost_l iterations for both, noise and way to go, so that it is the better one from

    n* = (cost_l (variance_l + F) − cost_s (variance_s + F)) / (N cost_s (bias_s² − bias_l²)),
    F = N n_0 m_s,

on. T_n goes up from the shortest to the one that is the first to be better (of several the best),
and so on. With F = 0 it is the formula for a gradient at a fixed θ, averaged over the evaluations
B = n N cost_s. Which estimator stands for each T is in `staging.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from mlmcgrad.diagnostics.predicted import Predicted
from mlmcgrad.schedules import Schedule, check_iteration

_SHOWN = 8  # steps in words
_NEVER = 2**53  # iterations
_MOST = 2.0**20  # T


@dataclass(frozen=True)
class Truncations:
    """A schedule of T that goes up in steps.

    Attributes:
        steps: first iteration and T of each step.

    Example:
        >>> schedule = Truncations(((1, 2.0), (100, 8.0)))
        >>> schedule(99), schedule(100)
        (2.0, 8.0)
    """

    steps: tuple[tuple[int, float], ...]

    def __call__(self, n: SupportsIndex) -> float:
        """T at iteration n."""
        number = check_iteration(n)
        return self.steps[bisect_right(self.steps, number, key=lambda step: step[0]) - 1][1]

    @classmethod
    def of(cls, schedule: Schedule) -> Truncations:
        """The powers of two that a schedule which does not fall has passed at each n.

        Example:
            >>> from mlmcgrad import schedules
            >>> Truncations.of(schedules.power(1.0, 0.5)).steps[:3]
            ((1, 1.0), (4, 2.0), (16, 4.0))
        """
        if isinstance(schedule, Truncations):
            return schedule
        steps = [(1, 2.0 ** math.floor(math.log2(max(1.0, schedule(1)))))]
        while (further := 2.0 * steps[-1][1]) <= min(_MOST, schedule(_NEVER)):
            steps.append((bisect_left(range(_NEVER), further, lo=1, key=schedule), further))
        return cls(tuple(steps))

    def longer(self, other: Truncations) -> Truncations:
        """The longer of two at every n.

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
        words = [f"T = {first[1]:g}", *(f"{t:g} from n = {n}" for n, t in later)]
        return ", ".join(words if len(words) <= _SHOWN else [*words[: _SHOWN - 1], "…"])


@dataclass(frozen=True)
class Rung:
    """A truncation of a family.

    Attributes:
        truncation: T.
        predicted: what the estimator that stands for it does.
        left: ‖E[Ĥ]‖², how far a training with it is from where it goes.
    """

    truncation: float
    predicted: Predicted
    left: float


def crossover(short: Predicted, long: Predicted) -> float:
    """B*, from which on the second is better: 0 if it always is, infinite if it never is."""
    more = long.work_variance - short.work_variance
    less = short.bias.value - long.bias.value
    if more <= 0.0:
        return 0.0 if less >= 0.0 else math.inf
    return more / less if less > 0.0 else math.inf


def truncations(family: Sequence[Rung], chains: int, iteration: int) -> Truncations:
    """T_n from the iteration on at which a plan was made.

    Args:
        family: what there is, from the shortest truncation to the longest.
        chains: N, simulations of an iteration.
        iteration: n_0; 0 leaves out the way to go.
    """
    start = max(1, iteration)
    now, n, steps = 0, start, [(1, family[0].truncation)]
    while now + 1 < len(family):
        present = family[now]
        when = [_better(present, later, chains, iteration) for later in family[now + 1 :]]
        first = min(when)
        if first > _NEVER:
            break
        n = max(n, math.ceil(first))
        # Of those that are better by then, the best: at once, where several have less noise too.
        able = [i for i, each in enumerate(when, now + 1) if each <= n]
        now = min(able, key=lambda i: (_error(family[i], present, n, chains, iteration), -i))
        begin = 1 if n == start else n
        if steps[-1][0] == begin:
            steps.pop()
        steps.append((begin, family[now].truncation))
    return Truncations(tuple(steps))


def _error(each: Rung, present: Rung, n: int, chains: int, iteration: int) -> float:
    """Squared error after the evaluations of n iterations with the present estimator."""
    noise = each.predicted.variance / chains + iteration * present.left
    return each.predicted.bias.value + noise * each.predicted.cost / (n * present.predicted.cost)


def _better(short: Rung, long: Rung, chains: int, iteration: int) -> float:
    """n*, from which on the second is better."""
    left = chains * iteration * short.left
    more = long.predicted.cost * (long.predicted.variance + left)
    more -= short.predicted.cost * (short.predicted.variance + left)
    less = short.predicted.bias.value - long.predicted.bias.value
    if more <= 0.0:
        return 0.0 if less >= 0.0 else math.inf
    return more / (chains * short.predicted.cost * less) if less > 0.0 else math.inf
