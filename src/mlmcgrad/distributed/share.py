"""Which part of the work of a shard others do, where one chain is longer than what a shard has.

Chains are dealt whole (`deal.py`), and one of them may be more than the mean of the shards. But not
all of its work has to be done by one process: draws of i-SIR and importance sampling are weighed in
any order, and so are the states of a Markov chain differentiated. With s_i what must stay in shard
i and m_i what may be moved, a shard with s_i + m_i above the mean gives of its m_i, a step at a
time, to the shard that has the least so far, until it has no more than the mean or no shard is
better off. The slowest shard has then about

    max(mean, max_i s_i).

Everything follows from the plan and the number of shards: all processes know it without a word,
and where the work is cut does not depend on how many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mlmcgrad.plan import Plan

# A shard within this part of the mean is left alone.
SLACK = 0.02
# What is given at a time: this part of the mean, and not less than a message is worth: units times
# parameters, between a network that gains by messages and one that loses (docs/scale.md).
STEP, LEAST, WORTH = 0.02, 16, 2**24


@dataclass(frozen=True)
class Gift:
    """Work of one shard that another one does: what is numbered begin … end − 1 of what moves."""

    giver: int
    taker: int
    begin: int
    end: int


@dataclass(frozen=True)
class Work:
    """What each shard has to do, in units that are the same for all.

    Attributes:
        stays: what nobody else can do, of each shard.
        moves: what any shard can do, of each shard: a unit each, in a fixed order.
        least: how many units are worth a message.

    The first units are given, and a shard gives or takes, or neither.

    Example:
        >>> work = Work((100, 100, 100), (400, 100, 100))
        >>> work.gifts
        (Gift(giver=0, taker=1, begin=0, end=96), Gift(giver=0, taker=2, begin=96, end=192))
        >>> work.shared
        (308, 296, 296)
    """

    stays: tuple[int, ...]
    moves: tuple[int, ...]
    least: int = LEAST

    @property
    def whole(self) -> tuple[int, ...]:
        """What each shard does if nothing is given."""
        return tuple(map(sum, zip(self.stays, self.moves, strict=True)))

    @property
    def shared(self) -> tuple[int, ...]:
        """What each shard does with what is given."""
        work = list(self.whole)
        for gift in self.gifts:
            work[gift.giver] -= gift.end - gift.begin
            work[gift.taker] += gift.end - gift.begin
        return tuple(work)

    @cached_property
    def gifts(self) -> tuple[Gift, ...]:
        """Who gives what to whom, by giver and then in the order of the units."""
        work = list(self.whole)
        mean = sum(work) / len(work)
        step = max(self.least, round(STEP * mean))
        least = [(has, shard) for shard, has in enumerate(work) if has < mean]
        heapq.heapify(least)
        gifts: list[Gift] = []
        for giver in sorted(range(len(work)), key=lambda shard: -work[shard]):
            has, left, units = work[giver], self.moves[giver], dict[int, int]()
            while has > (1.0 + SLACK) * mean and left >= step and least[0][0] + step < has:
                less, taker = least[0]
                heapq.heapreplace(least, (less + step, taker))
                has, left = has - step, left - step
                units[taker] = units.get(taker, 0) + step
            begin = 0
            for taker, count in units.items():
                gifts.append(Gift(giver, taker, begin, begin + count))
                begin += count
        return tuple(sorted(gifts, key=lambda gift: (gift.giver, gift.begin)))

    def given(self, shard: int) -> tuple[Gift, ...]:
        """What a shard gives."""
        return tuple(gift for gift in self.gifts if gift.giver == shard)


def work_of_chains(plans: Sequence[Plan], least: int = LEAST, states: int = 1) -> Work:
    """Markov chains: a transition is a unit that stays, the gradient at its state one that moves.

    Args:
        plans: of the shards.
        least: how many units are worth a message.
        states: of a transition; as many draws were weighed then, in place of one step.
    """
    units = tuple(states * int(plan.longest.sum()) for plan in plans)
    return Work(units, units, least)


def work_of_draws(plans: Sequence[Plan], least: int = LEAST) -> Work:
    """Draws that ignore the chain: a transition is a unit that moves, its weights and gradients."""
    units = tuple(int(plan.longest.sum()) for plan in plans)
    return Work((0,) * len(units), units, least)


def worth(parameters: int) -> int:
    """How many units of a network are worth a message: the fewer, the larger it is.

    Example:
        >>> worth(30_000), worth(1_000_000)
        (559, 16)
    """
    return max(LEAST, WORTH // parameters)
