"""The chain that stays with probability a and is drawn afresh otherwise: P = a I + (1−a) 1πᵀ.

TV(P^i(x,·), π) = a^i (1−π(x)) and TV(P^i(x,·), P^i(y,·)) = a^i for x ≠ y, whatever π is: its
ergodicity constants are known without computing anything.

Its path needs no loop over steps: X_i is the draw of the latest renewal at or before i. All steps
of all chains are drawn at once, in one ragged array, so the time of an estimate follows the total
number of steps rather than the longest chain; so does the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context, Outcome, Pieces, Start, count_states
from mlmcgrad.measure import Measure
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import fraction


@final
@dataclass(frozen=True)
class Regenerative:
    """A kernel on the states 0 … S−1 that stays or renews.

    Args:
        stay: a in [0, 1), the probability of staying where one is.
        law: `law(*context)`, the stationary law π of each chain, (chains, S).

    Example:
        >>> kernel = Regenerative(0.5, lambda: torch.tensor([[0.25, 0.75]]))
    """

    stay: float
    law: Callable[..., Tensor]

    def __post_init__(self) -> None:
        fraction(self.stay, "stay")

    def chains(self, x0: Start, context: Context) -> int:
        """One for each row of x0."""
        return count_states(x0, "Regenerative")

    def run(self, x0: Start, context: Context, plan: Plan, generator: torch.Generator) -> Pieces:
        """Simulate the planned chains from x0; the measure is one piece."""
        with torch.no_grad():
            cumulative = self.law(*context).double().cumsum(-1)  # (chains, S)
        chains, states = cumulative.shape
        lengths = plan.longest
        owner = torch.repeat_interleave(lengths)  # (steps of all chains,)
        noise = torch.rand(2, len(owner), dtype=torch.float64, generator=generator)
        # Divided by the last one, so that rounding never reaches a state of probability 0.
        point = noise[0] * cumulative[:, -1][owner]
        fresh = (point[:, None] >= cumulative[:, :-1][owner]).sum(1)
        begin = (lengths.cumsum(0) - lengths)[owner]
        index = torch.arange(len(owner))
        renewal = torch.where(noise[1] >= self.stay, index, -1).cummax(0).values
        state = torch.where(renewal >= begin, fresh[renewal], x0[owner])
        step = index - begin + 1
        weight = plan.at(step, owner)
        coefficient = torch.zeros(chains * states, dtype=torch.float64)
        coefficient.index_add_(0, owner * states + state, weight)
        points = torch.arange(chains * states)
        yield Measure(points % states, points // states, coefficient)
        end = lengths.cumsum(0) - 1
        before = torch.where(step == 1, x0[owner], state.roll(1))
        return Outcome(state[end], 0, int((state != before).sum()), 0)
