"""`MarkovGradient` on several processes: a batch is cut into shards, which they share.

A kernel draws for all chains of a call from one generator. So that no number depends on the number
of processes, a batch is cut into a fixed number of shards, and shard s of iteration n draws from a
generator seeded by (seed, n, s). A single process computes all shards one after the other; with as
many processes as shards each computes one. The lengths of all chains are drawn once for the whole
batch, from a generator seeded by (seed, n).

Chains are dealt to shards by cost, longest first: each goes to the shard with the least work so far
(Graham 1969). The largest shard is then below the mean plus the cost of one chain, and a chain that
costs more than the mean has a shard for itself.

Gradients are added in float64, each times the number of chains of its shard, and the sum is divided
at the end. Products of a float32 and a small integer are exact, and so are nearly all of their
sums, in any order. Weights like 13/50 would not do: multiples of 1/50 lie halfway between two
float32 so often that the order of the sums would decide the rounding.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from operator import mul
from typing import Any, SupportsIndex, TypeAlias, final

import torch
from torch import Tensor

from mlmcgrad._checks import whole
from mlmcgrad.backward import Estimate, accumulate
from mlmcgrad.distributed.world import (
    all_reduce,
    check_equal,
    check_same,
    current,
    fingerprint,
    seed_for,
)
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Context, Outcome, Start, map_tensors, take, tensors_in
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import pick

ShardGradient: TypeAlias = tuple[tuple[Tensor, ...], Estimate, tuple[float, ...]]
"""Gradients and estimate of one shard, and further numbers that the caller combines."""

_COUNTS = 5  # numbers of an estimate that its lengths do not imply


@dataclass(frozen=True)
class Shards:
    """The shards of one batch.

    Attributes:
        whole: lengths of all chains.
        rows: indices of the chains of each shard, ascending.
        lengths: lengths of the chains of each shard.
        call: the seed and the iteration, which all processes must have in common.
    """

    whole: Lengths
    rows: tuple[Tensor, ...]
    lengths: tuple[Lengths, ...]
    call: str = ""

    @classmethod
    def of(cls, lengths: Lengths, count: int, call: str = "") -> Shards:
        """Cut a batch into `count` shards with about the same number of transitions.

        Raises:
            ValueError: there are fewer chains than shards.
        """
        if count > len(lengths.levels):
            raise ValueError(
                f"shards must be ≤ {len(lengths.levels)}, the number of chains, got {count}; use "
                "fewer shards, or a larger batch"
            )
        rows = deal(lengths.longest, count)
        each = [lengths.select(mine) for mine in rows]
        each[0] = replace(each[0], cut=lengths.cut)  # so that one shard warns of it
        return cls(lengths, tuple(rows), tuple(each), call)

    def mean(self, values: Sequence[float]) -> float:
        """Return the mean over all chains, given the mean over the chains of each shard."""
        chains = sum(map(len, self.rows))
        return sum(map(mul, [len(mine) / chains for mine in self.rows], values))

    def compute(
        self,
        gradient_of: Callable[[int], ShardGradient],
        parameters: Sequence[Tensor],
        *,
        extra: int = 0,
        mean: bool = True,
        last: bool = True,
    ) -> tuple[tuple[Tensor, ...], Estimate, list[list[float]]]:
        """Compute the shards of this process, and add up the gradients of all processes.

        Args:
            gradient_of: computes a shard, given its number.
            parameters: the tensors of the gradients.
            extra: how many further numbers `gradient_of` returns.
            mean: whether gradients and values are means over the chains, or sums.
            last: whether to exchange the last states of the chains as well.

        Returns:
            Gradients and estimate of all chains, the same in every process, and a list for each
            further number, in the order of the shards. Without `last`, `estimate.last` is empty.

        Raises:
            ValueError: there are more processes than shards, or they do not agree on the call.
            FloatingPointError: something is not finite in one process; all of them raise.
        """
        sizes = [parameter.numel() for parameter in parameters]
        device, columns = parameters[0].device, _COUNTS + extra
        cells, world = len(self.rows) * columns, current()
        flat = torch.zeros(sum(sizes) + cells + world.size + 1, dtype=torch.float64, device=device)
        *sums, numbers, calls, failed = flat.split([*sizes, cells, world.size, 1])
        calls[world.rank] = fingerprint(self.call, [self.whole.levels, self.whole.terms])
        table = numbers.view(-1, columns)
        # The numbers of chains without their common factor, or 1 for a sum.
        chains = [len(rows) if mean else 1 for rows in self.rows]
        weights = [count // math.gcd(*chains) for count in chains]
        ends: dict[int, Tensor] = {}
        error: FloatingPointError | None = None
        try:
            for shard in self._of_this_process():
                gradients, one, further = gradient_of(shard)
                for total, gradient in zip(sums, gradients, strict=True):
                    total.add_(gradient.reshape(-1).to(device), alpha=weights[shard])
                moves = one.acceptance * one.transitions
                counts = (one.value, moves, one.evaluations, one.loss_evaluations, one.invalid)
                table[shard] = torch.tensor((*counts, *further), dtype=torch.float64)
                ends[shard] = one.last
        except FloatingPointError as exception:
            error = exception
            failed.fill_(1.0)
        all_reduce(flat)
        remedy = "every process passes the same n, counted from 1, and has the same seed"
        check_equal("n, seed or lengths", calls.tolist(), remedy)
        if failed:
            raise error or FloatingPointError("another process reports the reason")
        # Combined shard by shard, so that no digit depends on the processes.
        values, accepted, evaluations, losses, invalid, *others = table.T.tolist()
        states = self._gather(ends) if last else flat.new_zeros(0)
        estimate = Estimate.of(
            self.whole,
            Outcome(states, int(sum(evaluations)), sum(accepted), int(sum(invalid))),
            value=self.mean(values) if mean else sum(values),
            loss_evaluations=int(sum(losses)),
            parameters=tuple(parameters),
        )
        divisor, pairs = sum(weights) if mean else 1, zip(parameters, sums, strict=True)
        means = ((total / divisor).to(p.device, p.dtype).view_as(p) for p, total in pairs)
        return tuple(means), estimate, others

    def _of_this_process(self) -> list[int]:
        """Deal the shards to the processes by transitions, and return those of this one."""
        world = current()
        if len(self.rows) < world.size:
            raise ValueError(
                f"shards must be ≥ {world.size}, the number of processes, got {len(self.rows)}; "
                "start fewer processes, or begin with more shards"
            )
        costs = [int(lengths.longest.sum()) for lengths in self.lengths]
        shards: list[int] = deal(costs, world.size)[world.rank].tolist()
        return shards

    def _gather(self, ends: dict[int, Tensor]) -> Tensor:
        """Return the last states of all chains: each process adds 0 to those of the others."""
        one = next(iter(ends.values()))
        wide = torch.promote_types(one.dtype, torch.float64)
        states = one.new_zeros((len(self.whole.levels), *one.shape[1:]), dtype=wide)
        for shard, end in ends.items():
            states[self.rows[shard].to(states.device)] = end.to(wide)
        all_reduce(states)
        return states.to(one.dtype)


@final
class Sharded:
    """The same gradient on any number of processes.

    Every process passes the whole batch and gets the whole estimate, but runs only the chains of
    its own shards. The result depends on the seed, the iteration and the number of shards, and not
    on the number of processes, up to the order of floating-point sums.

    Args:
        gradient: the gradient to compute; its `parameters` must be given.
        shards: number of parts of a batch, at least the number of processes, which is the default.
        seed: seed of all randomness, together with the iteration.

    Example:
        >>> import torch
        >>> import mlmcgrad as mg
        >>> theta = torch.zeros(2, requires_grad=True)
        >>> kernel = mg.kernels.Finite(torch.tensor([[0.9, 0.1], [0.4, 0.6]]))
        >>> estimator = mg.MLMC(truncation=64, assignment="balanced")
        >>> gradient = mg.MarkovGradient(kernel, lambda x: theta[x], estimator, parameters=[theta])
        >>> sharded = Sharded(gradient, shards=4)
        >>> estimate = sharded.backward(torch.zeros(100, dtype=torch.int64), n=1)
        >>> round(theta.grad.sum().item(), 6), len(estimate.last)
        (1.0, 100)
    """

    def __init__(
        self, gradient: MarkovGradient, *, shards: int | None = None, seed: int = 0
    ) -> None:
        if gradient.parameters is None:
            raise ValueError(
                "gradient must name its parameters, so that all processes add up the same tensors "
                "in the same order, got None; MarkovGradient(…, parameters=model.parameters())"
            )
        self.gradient, self.seed = gradient, whole(seed, "seed", 0)
        self.shards = current().size if shards is None else whole(shards, "shards")
        self._parameters: tuple[Tensor, ...] = tuple(gradient.parameters)
        self._checked = False

    def backward(self, x0: Start, *context: Any, n: SupportsIndex) -> Estimate:
        """Add the gradient estimate of all chains to `.grad` of the parameters.

        Args:
            x0: start of all chains, the same in every process.
            context: as in `MarkovGradient.backward`, with one row per chain of the whole batch.
            n: iteration, counted from 1; it seeds the randomness.

        Returns:
            The estimate of all chains; its counts are totals over the processes.

        Raises:
            LostError: another process has ended.
            FloatingPointError: something is not finite in one process; `.grad` is unchanged.
        """
        n = whole(n, "n")
        if not self._checked:
            self._check_same(x0, context)
        lengths = self.gradient.draw_lengths(x0, context, n, lengths_generator(self.seed, n))
        shards = Shards.of(lengths, self.shards, f"seed {self.seed} n {n}")

        def gradient_of(shard: int) -> ShardGradient:
            rows = shards.rows[shard]
            gradients, estimate = self.gradient.gradient(
                select_rows(x0, rows),
                *take(context, rows),
                n=n,
                generator=shard_generator(self.seed, n, shard, self._parameters[0].device),
                lengths=shards.lengths[shard],
            )
            return gradients, estimate, ()

        mean = self.gradient.reduction == "mean"
        gradients, estimate, _ = shards.compute(gradient_of, self._parameters, mean=mean)
        accumulate(self._parameters, gradients)
        return estimate

    def _check_same(self, x0: Start, context: Context) -> None:
        """Compare parameters and batch in the first call: different ones would stay different."""
        check_same(
            "parameters",
            self._parameters,
            "make them from the same seed, or load the same file in every process",
        )
        start = tensors_in(vars(x0) if is_dataclass(x0) else x0)
        remedy = "every process passes the whole batch: draw it from the same seed"
        check_same("x0 or context", [*start, *tensors_in(context)], remedy)
        self._checked = True


def deal(cost: Tensor | Sequence[float], shares: int) -> list[Tensor]:
    """Deal items by cost, the most expensive first, to the share with the least cost so far.

    Args:
        cost: positive cost of each item.
        shares: number of shares, from 1 to the number of items.

    Returns:
        The indices of the items of each share, ascending. Ties in cost are broken in favour of the
        share with fewer items, then the one that comes first, so every process makes the same
        choice.

    Example:
        >>> [rows.tolist() for rows in deal([1.0, 8.0, 2.0, 4.0, 2.0], 2)]
        [[0, 1], [2, 3, 4]]
    """
    costs: list[float] = cost.tolist() if isinstance(cost, Tensor) else list(cost)
    rows: list[list[int]] = [[] for _ in range(shares)]
    least = [(0.0, 0, share) for share in range(shares)]  # cost, items, number: a heap
    for row in sorted(range(len(costs)), key=lambda row: -costs[row]):
        total, count, share = least[0]
        rows[share].append(row)
        heapq.heapreplace(least, (total + costs[row], count + 1, share))
    return [torch.tensor(sorted(mine)) for mine in rows]


def select_rows(x0: Start, rows: Tensor) -> Any:
    """Select rows of every tensor of a batch, or of the start of its chains."""
    if is_dataclass(x0) and not isinstance(x0, type):  # states of a store, or a first block
        return replace(x0, **map_tensors(lambda tensor: pick(tensor, rows), vars(x0)))
    return map_tensors(lambda tensor: pick(tensor, rows), x0)


def lengths_generator(seed: int, n: int) -> torch.Generator:
    """Return the generator of the lengths of iteration n, on the CPU for every device."""
    return torch.Generator().manual_seed(seed_for(seed, f"plan {n}"))


def shard_generator(seed: int, n: int, shard: int, device: torch.device) -> torch.Generator:
    """Return the generator of a shard in iteration n."""
    return torch.Generator(device).manual_seed(seed_for(seed, f"shard {n} {shard}"))
