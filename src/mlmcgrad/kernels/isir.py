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

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context, Outcome, Pieces, Simulation, Start, take
from mlmcgrad.kernels.groups import shares
from mlmcgrad.kernels.proposing import (
    FirstBlock,
    FirstWeights,
    Part,
    ProposingKernel,
    check_alive,
    count_collapsed,
    insert,
    usable,
)
from mlmcgrad.kernels.selection import Draws, rao_blackwell, sampled, still_possible
from mlmcgrad.measure import Floats, Measure, pick
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import whole
from mlmcgrad.store import Remembered

# Draws of one part of the chains: enough to make the cost of a part vanish. Averaging has a cost
# that grows with the square of the steps of a part.
_PART_DRAWS = 2**16
_AVERAGED_STEPS = 128


@final
@dataclass(frozen=True)
class ISIR(ProposingKernel):
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
    x0 may also be a `FirstBlock`: these k draws with their weights, made by the caller; or what a
    `Store` remembers: data that it has no state of start with a draw of q.

    Reference:
        Tjelmeland (2004); Cardoso, Samsonov, Thin, Moulines, Olsson (2022), "BR-SNIS: bias
        reduced self-normalized importance sampling".
    """

    rao_blackwell: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        whole(self.candidates, "candidates", 2)
        whole(self.chunk, "chunk")

    def run(self, x0: Start, context: Context, plan: Plan, generator: torch.Generator) -> Pieces:
        """Simulate the planned chains; the measure of short ones is one piece.

        It has every candidate, those of weight 0 too: chain by chain, each from its first block on.
        """
        simulation = Simulation(self.parts(x0, context, plan, generator))
        for part in simulation:
            yield part.measure
        return simulation.outcome

    def parts(
        self, x0: Start, context: Context, plan: Plan, generator: torch.Generator
    ) -> Generator[Part, None, Outcome]:
        """What `run` yields, with the weights within the first block; returns the outcome.

        The weights are those of draws of q: a state that x0 brought is not among them.
        """
        kept = int(x0 is not None and not isinstance(x0, FirstBlock))
        order = torch.from_numpy(plan.longest.numpy().argsort(kind="stable"))
        plan = plan.select(order)
        start, law = self._start(x0, context, order, generator), None
        last, carried = torch.empty(0), torch.zeros(0, dtype=torch.float64)
        select = rao_blackwell if self.rao_blackwell else sampled
        evaluations, moves, invalid, collapsed = 0, 0.0, 0, 0
        first = FirstWeights(np.zeros(0), np.zeros((0, self.candidates - kept)))
        for begin, end in self._parts(plan.longest):
            if begin > 0:
                running = plan.longest > begin
                plan, order = plan.select(running), order[running]
            lengths = plan.longest.clamp(max=end) - begin
            draws, z, owner, bad = self._draw(start, law, context, order, lengths, generator)
            share, began = np.zeros(len(owner)), first
            if begin == 0:
                began, collapsed = _first_block(draws, order, kept, share)
                last = torch.empty_like(z[: len(order)])
            selection = select(draws, plan.flat(begin + 1, end), generator)
            coefficient = selection.coefficient
            if begin > 0:
                coefficient[draws.starting] += carried
            evaluations += len(owner) - carried.numel()
            moves, invalid = moves + selection.moves, invalid + bad
            ended = int((plan.longest <= end).sum())  # the shortest come first
            last[order[:ended]] = pick(z, selection.kept[:ended])
            if ended < len(order):
                held, law = still_possible(draws, selection, len(order) - ended)
                start = FirstBlock(z[held], draws.log_w[held])
                # A draw that goes on is not in the measure yet: it would be paid for twice.
                carried, coefficient[held] = coefficient[held], 0.0
            owner, coefficient = owner.to(z.device), coefficient.to(z.device)
            within = torch.from_numpy(share).to(z.device)
            yield Part(Measure(z, owner, coefficient), within, began)
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
        if start is None:
            states, weights = self.fresh(context, owner, generator)
            z, log_w = torch.cat(states), torch.cat(weights)
        else:
            first = counts.cumsum(0) - counts
            given = torch.zeros(len(owner), dtype=torch.bool)
            given[(first[:, None] + torch.arange(start.points.shape[1])).flatten()] = True
            states, weights = self.fresh(context, owner[~given], generator)
            z = insert(states, start.points.flatten(0, 1), given)
            log_w = insert(weights, start.log_weight.flatten().double(), given)
        usual, bad = usable(log_w)
        draws = Draws(torch.from_numpy(usual), lengths, self.candidates - 1, law)
        return draws, z, owner, bad

    @torch.no_grad()
    def _start(
        self, x0: Start, context: Context, chains: Tensor, generator: torch.Generator
    ) -> FirstBlock | None:
        """The candidates that x0 holds, in the order of the chains; bare states are weighed."""
        if x0 is None:
            return None
        if isinstance(x0, FirstBlock):
            self.check_block(x0)
            return FirstBlock(x0.points.detach()[chains], x0.log_weight.detach()[chains])
        states = self._complete(x0, context, generator) if isinstance(x0, Remembered) else x0
        z = states.detach()[chains]
        pieces = [
            self.weigh(z[b : b + self.chunk], take(context, chains[b : b + self.chunk]))
            for b in range(0, len(z), self.chunk)
        ]
        return FirstBlock(z[:, None], torch.cat(pieces)[:, None])

    def _complete(self, x0: Remembered, context: Context, generator: torch.Generator) -> Tensor:
        """The states of a store, and draws of q where it has none."""
        new = (~x0.known).nonzero()[:, 0]
        drawn = [
            self.draw(take(context, who), len(who), generator) for who in new.split(self.chunk)
        ]
        return insert(drawn, x0.points[x0.known], x0.known)


def _first_block(
    draws: Draws, chains: Tensor, kept: int, share: Floats
) -> tuple[FirstWeights, int]:
    """The weights of the first block; refuses one in which no candidate has any.

    Args:
        draws: the candidates; later blocks have the kept state.
        chains: their numbers.
        kept: how many of the first candidates are no draws of q.
        share: (draws,): the weights are put there.

    Returns:
        The weights, and in how many chains one candidate has nearly all of them.
    """
    index = draws.first.numpy()[:, None] + np.arange(draws.fresh + 1)  # (chains, k)
    log_w = draws.log_w.numpy()[index]
    log_sum, within = shares(log_w)
    check_alive(log_sum, chains.numpy(), f"all {draws.fresh + 1} candidates of the first step")
    collapsed = count_collapsed(within)
    if kept:
        log_sum, within = shares(log_w[:, kept:])
    share[index[:, kept:]] = within
    return FirstWeights(log_sum, within), collapsed
