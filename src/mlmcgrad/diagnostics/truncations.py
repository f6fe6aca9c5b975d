"""T_n of a training, from a plan: cheap at first, long when the bias begins to matter.

After B evaluations a gradient that was averaged over all of them would have the mean squared error
bias² + work × variance / B. Of two truncations the longer one, with less bias and more work ×
variance, is the better from

    B* = (WV_long − WV_short) / (bias²_short − bias²_long)

on, so T_n goes up the lower envelope of these lines, B being the evaluations so far.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from mlmcgrad.diagnostics.predicted import Predicted
from mlmcgrad.schedules import check_iteration

_SHOWN = 8  # steps in words
_NEVER = 2**53  # iterations


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

    def __str__(self) -> str:
        first, *later = self.steps
        words = [f"T = {first[1]:g}", *(f"{t:g} from n = {n}" for n, t in later)]
        return ", ".join(words if len(words) <= _SHOWN else [*words[: _SHOWN - 1], "…"])


def crossover(short: Predicted, long: Predicted) -> float:
    """B*, from which on the second is better: 0 if it always is, infinite if it never is."""
    more = long.work_variance - short.work_variance
    less = short.bias.value - long.bias.value
    if more <= 0.0:
        return 0.0 if less >= 0.0 else math.inf
    return more / less if less > 0.0 else math.inf


def truncations(family: Sequence[tuple[float, Predicted]], chains: int) -> Truncations:
    """The envelope as a schedule.

    Args:
        family: truncations, from the shortest to the longest, and what they would do.
        chains: simulations of an iteration.
    """
    now, n, spent = 0, 1, 0.0
    steps = [(n, family[0][0])]
    while now + 1 < len(family):
        cost = chains * family[now][1].cost
        later = range(now + 1, len(family))
        # The line that the present one meets first; of several, the longest.
        best = min(later, key=lambda j: (crossover(family[now][1], family[j][1]), -j))
        budget = crossover(family[now][1], family[best][1])
        if budget == math.inf or (budget - spent) / cost > _NEVER:
            break
        whole = max(0, math.ceil((budget - spent) / cost))
        n, spent, now = n + whole, spent + whole * cost, best
        if steps[-1][0] == n:
            steps.pop()
        steps.append((n, family[now][0]))
    return Truncations(tuple(steps))
