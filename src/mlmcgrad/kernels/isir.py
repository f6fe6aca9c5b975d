"""Iterated sampling importance resampling (i-SIR), the kernel of BR-IWAE and MLMC-IWAE.

Step p of a chain sees k candidates: the state kept so far and k−1 fresh draws of the proposal q.
With w the importance weights, ω_ℓ = w_ℓ / Σ_j w_j over the k candidates (erratum 2 in
docs/errata.md), the step contributes H(X_p) = Σ_ℓ ω_ℓ H(z_ℓ), and the next kept state is drawn by
ω.

Two facts shape the code. The fresh draws ignore the chain, so all draws of all chains are made and
weighed in one batched pass and the chain is arithmetic on scalars (`selection.py`). And no padding
is needed: chains are sorted by length, so those that still run are a slice.

Long chains are made part by part, so that memory does not depend on their length. From one part to
the next go the draws that may still be kept: one for each chain, or, where the choice is averaged
out, those whose probability is not negligible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import (
    Context,
    Outcome,
    Pieces,
    Start,
    check_rows,
    check_unchanged,
    count_states,
    take,
    tensors_in,
)
from mlmcgrad.kernels.selection import Draws, rao_blackwell, sampled, still_possible
from mlmcgrad.measure import Measure
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import whole

# Draws of one part of the chains: enough to make the cost of a part vanish. Averaging has a cost
# that grows with the square of the steps of a part.
_PART_DRAWS = 2**16
_AVERAGED_STEPS = 128
# The candidates of one step of all chains are in memory at once.
_MOST_CANDIDATES = 10**8
_NEARLY_ALL = 0.999


@dataclass(frozen=True)
class FirstBlock:
    """The k candidates of the first step of `ISIR`, drawn and weighed by the caller.

    A caller who needs their weights anyway (the encoder of an IWAE does) pays for them once: passed
    to `ISIR` as x0, they are not drawn and weighed again.
    """

    points: Tensor  # (chains, k, *shape): independent draws of the proposal
    log_weight: Tensor  # (chains, k)


@final
@dataclass(frozen=True)
class ISIR:
    """Iterated sampling importance resampling; leaves π ∝ w·q invariant.

    Args:
        log_weight: log w = log π − log q up to a constant for each row,
            `log_weight(z, *context) -> (rows,)`.
        propose: `propose(rows, *context, generator=generator) -> z` makes one draw of q for each
            of `rows` rows; tensors in the context have that many rows, one for each draw.
        candidates: k ≥ 2, the number of candidates of a step.
        rao_blackwell: replace the random choice of the kept state by its exact conditional law
            given the draws. Same expectation, less variance, no further evaluation of
            `log_weight`, but more arithmetic.
        chunk: rows that are drawn and weighed in one call: it bounds the memory.

    `x0=None` starts every chain with a draw of q, so that the first step has k independent draws;
    x0 may also be a `FirstBlock`: these k draws with their weights, made by the caller.

    Reference:
        Tjelmeland (2004); Cardoso, Samsonov, Thin, Moulines, Olsson (2022), "BR-SNIS: bias
        reduced self-normalized importance sampling".
    """

    log_weight: Callable[..., Tensor]
    propose: Callable[..., Tensor]
    candidates: int
    rao_blackwell: bool = field(default=False, kw_only=True)
    chunk: int = field(default=8192, kw_only=True)

    def __post_init__(self) -> None:
        whole(self.candidates, "candidates", 2)
        whole(self.chunk, "chunk")

    def chains(self, x0: Start, context: Context) -> int:
        """One for each row of x0, or for x0=None of the first tensor in the context."""
        chains = self._count(x0, context)
        if chains * self.candidates > _MOST_CANDIDATES:
            raise ValueError(
                f"candidates × chains must be at most {_MOST_CANDIDATES:,}, which are in memory at "
                f"once, got {self.candidates:,} × {chains:,}; use fewer of them, and longer chains"
            )
        return chains

    def _count(self, x0: Start, context: Context) -> int:
        if isinstance(x0, FirstBlock):
            return len(x0.points)
        if x0 is not None:
            return count_states(x0, "ISIR")
        tensors = [tensor for tensor in tensors_in(context) if tensor.dim()]
        if not tensors:
            raise ValueError(
                "x0=None needs a context tensor with one row per chain, which says how many "
                "chains there are; got none"
            )
        return len(tensors[0])

    def run(self, x0: Start, context: Context, plan: Plan, generator: torch.Generator) -> Pieces:
        """Simulate the planned chains; the measure of short ones is one piece.

        It has every candidate, those of weight 0 too: chain by chain, each from its first block on.
        """
        order = plan.longest.argsort(stable=True)
        plan = plan.select(order)
        start, law = self._start(x0, context, order), None
        last, carried = torch.empty(0), torch.zeros(0, dtype=torch.float64)
        select = rao_blackwell if self.rao_blackwell else sampled
        evaluations, moves, invalid, collapsed = 0, 0.0, 0, 0
        for begin, end in self._parts(plan.longest):
            running = plan.longest > begin
            plan, order = plan.select(running), order[running]
            lengths = plan.longest.clamp(max=end) - begin
            draws, z, owner, bad = self._draw(start, law, context, order, lengths, generator)
            if begin == 0:
                collapsed = _check_start(draws, order)
                last = torch.empty_like(z[: len(order)])
            weights = plan.to(z.device).at(begin + draws.step, draws.chain)
            selection = select(draws, weights, generator)
            coefficient = selection.coefficient
            if begin > 0:
                coefficient[draws.starting] += carried
            evaluations += len(owner) - carried.numel()
            moves, invalid = moves + selection.moves, invalid + bad
            ended = plan.longest <= end
            last[order[ended]] = z[selection.kept[ended]]
            held, law = still_possible(draws, selection, int((~ended).sum()))
            start = FirstBlock(z[held], draws.log_w[held])
            # A draw that goes on is not in the measure yet: it would be paid for twice.
            carried, coefficient[held] = coefficient[held], 0.0
            yield Measure(z, owner.to(z.device), coefficient)
        return Outcome(last, evaluations, moves, invalid, collapsed)

    def _parts(self, lengths: Tensor) -> Iterator[tuple[int, int]]:
        """Cut chains, of lengths in ascending order, into parts: first step − 1, last step."""
        begin, longest = 0, int(lengths[-1])
        while begin < longest:
            draws = (self.candidates - 1) * int((lengths > begin).sum())  # of one step
            steps = max(1, _PART_DRAWS // draws)
            end = begin + (min(steps, _AVERAGED_STEPS) if self.rao_blackwell else steps)
            yield begin, min(end, longest)
            begin = end

    @torch.no_grad()
    def _draw(
        self,
        start: FirstBlock | None,
        law: Tensor | None,
        context: Context,
        chains: Tensor,
        lengths: Tensor,
        generator: torch.Generator,
    ) -> tuple[Draws, Tensor, Tensor, int]:
        """All candidates of steps of these chains, which begin with those given in `start`.

        Returns:
            Their weights; the candidates, (draws, *shape); the chain of each, (draws,); and how
            many weights were NaN or +∞.
        """
        starts = 1 if law is None else law.shape[1]
        counts = starts + (self.candidates - 1) * lengths
        owner = chains.repeat_interleave(counts)  # (draws,)
        free = torch.ones(len(owner), dtype=torch.bool)
        if start is not None:
            first = counts.cumsum(0) - counts
            free[(first[:, None] + torch.arange(start.points.shape[1])).flatten()] = False
        states, weights = self._fresh(context, owner[free], generator)
        if start is None:
            z, log_w = torch.cat(states), torch.cat(weights)
        else:
            z = _insert(states, start.points.flatten(0, 1), ~free)
            log_w = _insert(weights, start.log_weight.flatten().double(), ~free)
        bad = ~(log_w < torch.inf)  # NaN or +∞: the draw cannot be used
        log_w = log_w.masked_fill(bad, -torch.inf)
        draws = Draws(log_w, lengths.to(z.device), self.candidates - 1, law)
        return draws, z, owner, int(bad.sum())

    def _start(self, x0: Start, context: Context, chains: Tensor) -> FirstBlock | None:
        """The candidates that x0 holds, in the order of the chains; bare states are weighed."""
        if x0 is None:
            return None
        if isinstance(x0, FirstBlock):
            if x0.log_weight.shape != x0.points.shape[:2] or x0.points.shape[1] != self.candidates:
                raise ValueError(
                    f"x0 must hold {self.candidates} candidates and a weight for each, got points "
                    f"of shape {tuple(x0.points.shape)}, weights {tuple(x0.log_weight.shape)}"
                )
            return FirstBlock(x0.points.detach()[chains], x0.log_weight.detach()[chains])
        z = x0.detach()[chains]
        pieces = [
            self._weigh(z[b : b + self.chunk], take(context, chains[b : b + self.chunk]))
            for b in range(0, len(z), self.chunk)
        ]
        return FirstBlock(z[:, None], torch.cat(pieces)[:, None])

    def _fresh(
        self, context: Context, owner: Tensor, generator: torch.Generator
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Draws for these rows with their log weights, chunk by chunk."""
        states, log_weights = [], []
        for who in owner.split(self.chunk) if len(owner) else ():
            rows = take(context, who)
            states.append(self._propose(rows, len(who), generator))
            log_weights.append(self._weigh(states[-1], rows))
        return states, log_weights

    def _weigh(self, z: Tensor, context: Context) -> Tensor:
        version = z._version
        log_w = self.log_weight(z, *context)
        check_rows("log_weight", log_w, z)
        check_unchanged("log_weight", z, version)
        return log_w.double()

    def _propose(self, context: Context, rows: int, generator: torch.Generator) -> Tensor:
        z = self.propose(rows, *context, generator=generator)
        if not isinstance(z, Tensor) or z.dim() == 0 or z.shape[0] != rows:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(
                f"propose(rows, *context, generator) must return one draw per row, here "
                f"({rows}, …), got {got}"
            )
        return z


def _insert(chunks: list[Tensor], start: Tensor, where: Tensor) -> Tensor:
    """Put the candidates of x0 into their rows, the drawn ones into the others."""
    if not chunks:
        return start
    drawn = torch.cat(chunks)
    if drawn.shape[1:] != start.shape[1:] or drawn.dtype != start.dtype:
        raise ValueError(
            f"x0 must look like a draw of propose, {drawn.dtype} of shape (chains, "
            f"{', '.join(map(str, drawn.shape[1:]))}), got {start.dtype} of row shape "
            f"{tuple(start.shape[1:])}"
        )
    both = drawn.new_empty((len(where), *drawn.shape[1:]))
    both[where], both[~where] = start.to(drawn.device), drawn
    return both


def _check_start(draws: Draws, chains: Tensor) -> int:
    """Refuse a first block in which no candidate has any weight; later ones have the kept state.

    Returns:
        In how many chains one candidate of the first block has nearly all of its weight.
    """
    block = torch.cat([draws.start[:, None], draws.new[draws.step == 1]], 1)  # (chains, k)
    dead = (block == -torch.inf).all(1)
    if bool(dead.any()):
        raise FloatingPointError(
            f"log_weight is −inf (or NaN) for all {draws.fresh + 1} candidates of the first step "
            f"of {int(dead.sum())} chains (chain {int(chains[dead.nonzero()[0, 0]])} is one of "
            "them), so there is nothing to select; use a proposal that covers the target, more "
            "candidates, or an x0 inside the support"
        )
    return int((block.softmax(1).amax(1) > _NEARLY_ALL).sum())
