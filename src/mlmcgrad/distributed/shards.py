"""A batch in shards: chains that run together, with randomness of their own.

A kernel draws for all chains of a call from one generator. So that no number depends on how many
processes there are, a batch is cut into a fixed number of shards, dealt by cost, and shard s of
iteration n draws from a generator seeded by (seed, n, s). Processes share the shards: one process
computes all of them one after the other, as many processes as shards one each. The plan of the
lengths is drawn once for the whole batch, from (seed, n). Where one chain is more than what a shard
has on average, other processes do a part of its work (`share.py`), and the same numbers come of it.

Gradients are added in float64, each times the number of chains of its shard, and the sum is divided
at the end. Products of a float32 and a small integer are exact, and so are nearly all of their
sums, in any order. Weights like 13/50 would not do: multiples of 1/50 lie halfway between two
float32 so often that the order of the sums would decide which of them it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from operator import mul
from typing import Any

import torch
from torch import Tensor

from mlmcgrad.distributed.collectives import add_up
from mlmcgrad.distributed.deal import dealt
from mlmcgrad.distributed.worlds import current
from mlmcgrad.kernels.base import Start, map_tensors
from mlmcgrad.measure import pick
from mlmcgrad.plan import Plan
from mlmcgrad.seeds import seed_for

ELSEWHERE = "it is in another process, whose message says what"


@dataclass(frozen=True)
class Part:
    """What a shard comes to, or a part of its work: what belongs to one shard is added up."""

    gradients: tuple[Tensor, ...]  # of each parameter, mean or sum over the chains of the shard
    numbers: tuple[float, ...]  # whatever else is to be known of it
    last: Tensor | None = None  # (chains of the shard, *shape): where its chains ended


@dataclass(frozen=True)
class Whole:
    """What all shards come to: the same in every process."""

    gradients: tuple[Tensor, ...]
    numbers: tuple[tuple[float, ...], ...]  # a row for each shard
    last: Tensor  # (chains, *shape); (0,) if it was not wanted


@dataclass(frozen=True)
class Shards:
    """The chains of each shard of one batch.

    Attributes:
        rows: numbers of the chains of each shard, ascending.
        plans: lengths of the chains of each shard.
    """

    rows: tuple[Tensor, ...]
    plans: tuple[Plan, ...]

    @classmethod
    def of(cls, plan: Plan, count: int) -> Shards:
        """Cut a batch into shards of about the same number of transitions.

        Raises:
            ValueError: there are fewer chains than shards.
        """
        if count > len(plan.levels):
            raise ValueError(
                f"shards must be ≤ {len(plan.levels)}, the number of chains, got {count}; use "
                "fewer shards, or a larger batch"
            )
        rows = dealt(plan.longest, count)
        plans = [plan.select(mine) for mine in rows]
        plans[0] = replace(plans[0], cut=plan.cut)  # so that it is said once
        return cls(tuple(rows), tuple(plans))

    @property
    def shares(self) -> list[float]:
        """The part of the chains that each shard has."""
        chains = sum(map(len, self.rows))
        return [len(mine) / chains for mine in self.rows]

    def mean(self, values: Sequence[float]) -> float:
        """The mean over all chains of what is a mean over the chains of each shard."""
        return sum(map(mul, self.shares, values))

    def ranks(self, costs: Sequence[float]) -> list[int]:
        """The process of each shard: they are dealt by cost.

        Raises:
            ValueError: there are more processes than shards.
        """
        world = current()
        if len(self.rows) < world.size:
            raise ValueError(
                f"shards must be ≥ {world.size}, the number of processes, got {len(self.rows)}; "
                "start fewer processes, or begin with more shards"
            )
        ranks = [0] * len(self.rows)
        for rank, mine in enumerate(dealt(costs, world.size)):
            for shard in mine.tolist():
                ranks[shard] = rank
        return ranks

    def compute(
        self,
        parts: Iterable[tuple[int, Part]],
        parameters: Sequence[Tensor],
        *,
        numbers: int,
        mean: bool = True,
        last: bool = True,
    ) -> Whole:
        """Compute what this process has to do, and add up what all of them did.

        Args:
            parts: computes it, each part with the number of its shard.
            parameters: what the gradients belong to.
            numbers: how many a part has besides.
            mean: whether gradients are means over chains, or sums.
            last: whether the ends of the chains are wanted: one exchange more.

        Raises:
            FloatingPointError: in some process something is not finite; all of them raise.
        """
        sizes = [parameter.numel() for parameter in parameters]
        device = parameters[0].device
        weights, divisor = self._weights() if mean else ([1] * len(self.rows), 1)
        cells = len(self.rows) * numbers
        flat = torch.zeros(sum(sizes) + cells + 1, dtype=torch.float64, device=device)
        *sums, table, failed = flat.split([*sizes, cells, 1])
        ends: dict[int, Tensor] = {}
        error: FloatingPointError | None = None
        try:
            for shard, part in parts:
                for total, gradient in zip(sums, part.gradients, strict=True):
                    total.add_(gradient.reshape(-1).to(device), alpha=weights[shard])
                row = slice(shard * numbers, (shard + 1) * numbers)
                table[row] += torch.tensor(part.numbers, dtype=torch.float64, device=device)
                if part.last is not None:
                    ends[shard] = part.last
        except FloatingPointError as exception:
            error = exception
            failed.fill_(1.0)
        add_up([flat])
        if failed:
            raise error or FloatingPointError(ELSEWHERE)
        pairs = zip(parameters, sums, strict=True)
        return Whole(
            tuple((total / divisor).to(p.device, p.dtype).view_as(p) for p, total in pairs),
            tuple(map(tuple, table.view(-1, numbers).tolist())),
            self._together(ends) if last else flat.new_zeros(0),
        )

    def _weights(self) -> tuple[list[int], int]:
        """The shares as integers without a common factor, and what their sum is."""
        counts = list(map(len, self.rows))
        factor = math.gcd(*counts)
        return [count // factor for count in counts], sum(counts) // factor

    def _together(self, ends: dict[int, Tensor]) -> Tensor:
        """The ends of all chains: every process fills in its own, and adds 0 to those of others."""
        one = next(iter(ends.values()))
        wide = torch.promote_types(one.dtype, torch.float64)
        whole = one.new_zeros((sum(map(len, self.rows)), *one.shape[1:]), dtype=wide)
        for shard, end in ends.items():
            whole[self.rows[shard].to(whole.device)] = end.to(wide)
        flat = whole.view(-1)
        add_up([flat])
        return whole.to(one.dtype)


def rows_of(x0: Start, rows: Tensor) -> Any:
    """Some rows of every tensor: of a batch, or of where its chains start."""
    if is_dataclass(x0) and not isinstance(x0, type):  # states of a store, or a first block
        return replace(x0, **map_tensors(lambda tensor: pick(tensor, rows), vars(x0)))
    return map_tensors(lambda tensor: pick(tensor, rows), x0)


def planning(seed: int, n: int) -> torch.Generator:
    """The generator of the plan of iteration n, on the CPU: the same plan on every device."""
    return torch.Generator().manual_seed(seed_for(seed, f"plan {n}"))


def drawing(seed: int, n: int, shard: int, device: torch.device) -> torch.Generator:
    """The generator of a shard in iteration n."""
    return torch.Generator(device).manual_seed(seed_for(seed, f"shard {n} {shard}"))
