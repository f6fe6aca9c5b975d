"""What a process does in one step: its own shards, and what others give it of theirs.

Work is given where there are as many processes as shards; with fewer, a process does its shards
whole. A process gives or takes, never both, so nobody who is waited for waits:

    giver   its shard, of which units go away at the start and at the end; it waits for answers
    taker   what it is given at the start; its own shard; what it is given at the end

At the start are units without which a giver cannot go on (weights), at the end others (gradients).
None says that nothing more comes. Where something is not finite in a process, it still sends and
answers what others wait for, None, and raises at the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from mlmcgrad.distributed.giving import Giving
from mlmcgrad.distributed.post import Post, receive
from mlmcgrad.distributed.shards import Part, Shards
from mlmcgrad.distributed.share import Work
from mlmcgrad.distributed.worlds import current


class Gives(NamedTuple):
    """What a shard gives."""

    start: Giving
    end: Giving


class Done(NamedTuple):
    """What came of units that were taken."""

    part: Part | None  # what belongs to the shard, and need not go back
    answer: Tensor | None  # what goes back


Own: TypeAlias = Callable[[int, Gives | None], Iterator[Part]]
Take: TypeAlias = Callable[[int, Sequence[Tensor]], Done]


class Sharing:
    """One step.

    Args:
        work: of the shards.
        shards: of the batch.
        device: where this process computes.
        answers: whether a giver waits for what comes of its units.
    """

    def __init__(self, work: Work, shards: Shards, device: torch.device, *, answers: bool) -> None:
        ranks = shards.ranks(work.whole)
        self._work, self._device, self._answers = work, device, answers
        self._mine = [shard for shard, rank in enumerate(ranks) if rank == current().rank]
        # With one process for all shards, or for some, nothing is sent.
        self._ranks = dict(enumerate(ranks)) if len(set(ranks)) == len(ranks) > 1 else {}
        self._post = Post()
        self._error: FloatingPointError | None = None

    def parts(self, own: Own, end: Take, start: Take | None = None) -> Iterator[tuple[int, Part]]:
        """All that this process does, with the shard that it belongs to.

        Args:
            own: does a shard, given its number and what it gives.
            end: does units that are given at the end, of the shard of another process.
            start: does those that are given at the start, if there are any.

        Raises:
            FloatingPointError: at the end, if something is not finite.
        """
        if start is not None:
            yield from self._taken(start)
        for shard in self._mine:
            yield from self._own(shard, own, start is not None)
        yield from self._taken(end)
        self._post.wait()
        if self._error is not None:
            raise self._error

    def _own(self, shard: int, own: Own, twice: bool) -> Iterator[tuple[int, Part]]:
        gifts, gives = self._work.given(shard), None
        if gifts:
            planned = self._work.moves[shard]
            ways = [self._ranks if twice else {}, self._ranks]
            gives = Gives(
                *(Giving(gifts, planned, ranks, self._post, self._device) for ranks in ways)
            )
        if self._error is None:
            try:
                for part in own(shard, gives):
                    yield shard, part
            except FloatingPointError as error:
                self._error = error
        for giving in gives or ():
            giving.close(all_of_them=True)

    def _taken(self, take: Take) -> Iterator[tuple[int, Part]]:
        for gift in self._work.gifts if self._ranks else ():
            if gift.taker in self._mine:
                yield from self._given(gift.giver, take)

    def _given(self, shard: int, take: Take) -> Iterator[tuple[int, Part]]:
        giver = self._ranks[shard]
        while (message := receive(giver, self._device)) is not None:
            done = Done(None, None)
            if self._error is None:
                try:
                    done = take(shard, message)
                except FloatingPointError as error:
                    self._error = error
            if self._answers:
                self._post.send(None if done.answer is None else (done.answer,), giver)
            if done.part is not None:
                yield shard, done.part
