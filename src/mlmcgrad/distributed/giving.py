"""One kind of work of a shard, in units of which others do some: where the shard is at home.

The units are the rows of tensors, in a fixed order, and are done in pieces. Where these begin and
end follows from the gifts (`share.py`), whether they are sent or not: on any number of processes
the same function sees the same rows together, and the same numbers come of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mlmcgrad.distributed.post import Post, receive
from mlmcgrad.distributed.shards import ELSEWHERE
from mlmcgrad.distributed.share import Gift


class Giving:
    """Gives units of a shard to others, or does them here.

    Args:
        gifts: of the shard, in the order of the units.
        planned: how many units the gifts are counted in.
        ranks: the processes of the shards to which units are sent.
        post: sends them.
        device: where the shard computes.
    """

    def __init__(
        self,
        gifts: Sequence[Gift],
        planned: int,
        ranks: Mapping[int, int],
        post: Post,
        device: torch.device,
    ) -> None:
        self._gifts, self._planned, self._ranks = gifts, planned, ranks
        self._post, self._device = post, device
        self._waiting = [gift.taker for gift in gifts if gift.taker in ranks]
        self._bounds = [(gift.begin, gift.end) for gift in gifts]
        self._count = 0  # units so far

    def of(self, units: int) -> None:
        """There are so many units in all: the gifts are the same parts of them."""
        self._bounds = [
            (g.begin * units // self._planned, g.end * units // self._planned) for g in self._gifts
        ]

    def sizes(self, chunk: int) -> Iterator[int]:
        """Cut what comes next: where gifts begin and end, and at most `chunk` together."""
        begin = self._count
        for until in itertools.chain.from_iterable(self._bounds):
            while begin < until:
                yield min(chunk, until - begin)
                begin += min(chunk, until - begin)
        yield from itertools.repeat(chunk)

    def taker(self) -> int | None:
        """The process that is to do the next unit; None if it is done here."""
        for gift, (begin, end) in zip(self._gifts, self._bounds, strict=True):
            if begin <= self._count < end:
                return self._ranks.get(gift.taker)
        return None

    def send(self, message: Sequence[Tensor], rank: int) -> None:
        """Send units to the process that is to do them."""
        self._post.send(message, rank)

    def passed(self, units: int) -> None:
        """So many units more were sent or done."""
        self._count += units

    def close(self, *, all_of_them: bool = False) -> None:
        """Tell those whose units have passed that there are no more; or all that still wait."""
        ends = {g.taker: end for g, (_, end) in zip(self._gifts, self._bounds, strict=True)}
        for taker in list(self._waiting):
            if all_of_them or ends[taker] <= self._count:
                self._post.send(None, self._ranks[taker])
                self._waiting.remove(taker)

    def spread_all(self, rows: Sequence[Tensor], do: Callable[..., Tensor], chunk: int) -> Tensor:
        """`spread` for all units that there are."""
        self.of(len(rows[0]))
        return self.spread(rows, do, chunk)

    def spread(self, rows: Sequence[Tensor], do: Callable[..., Tensor], chunk: int) -> Tensor:
        """What a function makes of rows of tensors, here and elsewhere: see `Spread`.

        Raises:
            FloatingPointError: something was not finite, here or in another process.
        """
        count, here, away = len(rows[0]), list[slice](), dict[int, list[slice]]()
        first, sizes = 0, self.sizes(chunk)
        while first < count:
            rank, piece = self.taker(), slice(first, min(first + next(sizes), count))
            (here if rank is None else away.setdefault(rank, [])).append(piece)
            self.passed(piece.stop - first)
            first = piece.stop
        for rank, pieces in away.items():
            given = [torch.cat([tensor[piece] for piece in pieces]) for tensor in rows]
            self.send((*given, torch.tensor([p.stop - p.start for p in pieces])), rank)
        try:
            done = {piece.start: do(*(tensor[piece] for tensor in rows)) for piece in here}
        finally:  # an answer that nobody takes would keep its sender waiting
            answers = [receive(rank, self._device) for rank in away]
        for pieces, answer in zip(away.values(), answers, strict=True):
            if answer is None:
                raise FloatingPointError(ELSEWHERE)
            parts = answer[0].split([piece.stop - piece.start for piece in pieces])
            done |= {piece.start: part for piece, part in zip(pieces, parts, strict=True)}
        self.close()
        return torch.cat([done[start] for start in sorted(done)])


def taken(message: Sequence[Tensor], do: Callable[..., Tensor]) -> Tensor:
    """What the same function makes of rows that were given: the answer."""
    *rows, sizes = message
    pieces = zip(*(tensor.split(sizes.tolist()) for tensor in rows), strict=True)
    return torch.cat([do(*piece) for piece in pieces])
