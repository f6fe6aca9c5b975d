"""Iterated sampling importance resampling (i-SIR), the kernel of BR-IWAE and MLMC-IWAE.

Step p of a chain sees k candidates: the state kept so far and k−1 fresh draws of the proposal q.
With w the importance weights, ω_ℓ = w_ℓ / Σ_j w_j over the k candidates (erratum 2 in
docs/errata.md), the step contributes H(X_p) = Σ_ℓ ω_ℓ H(z_ℓ), and the next kept state is drawn by
ω.

The fresh draws do not depend on the chain, so all draws of all chains are made and weighted in one
batched pass, and the chain itself is arithmetic on log weights. Chains are stored without padding
in one flat list (`Draws`), sorted by length, so those that still run after p steps are the last
ones. The weights are on the host, wherever the model is.

**Selection.** A chain of t steps has a starting state and t blocks of k−1 fresh candidates. With
S_p the sum of the weights in block p, a kept state s stays with probability

    σ_p(s) = w_s / (w_s + S_p) = sigmoid(log w_s − log S_p),

and otherwise the new state is candidate j of the block with probability w_j / S_p, independently of
s. Hence, for the distribution p of the kept state,

    p'(old j) = p(j) σ_p(j),     p'(new j) = (w_j / S_p) Σ_s p(s) (1 − σ_p(s)),

and p' also gives the weights of the candidates of step p in H(X_p). `sampled` draws the kept state
and so has a point mass for p before each step (Algorithm 3); `rao_blackwell` carries all of p. The
sigmoid form neither overflows nor underflows, even if weights spread over hundreds of nats.

Long chains are simulated part by part, so that memory does not depend on their length. A part
passes the draws that may still be kept to the next one, with their weights and probabilities: one
per chain or, with `rao_blackwell`, those whose probability is not negligible.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from mlmcgrad._checks import whole
from mlmcgrad.kernels.base import Context, Outcome, Start, described, take
from mlmcgrad.kernels.importance import (
    QUIET,
    FirstWeights,
    ProposingKernel,
    WeightedPiece,
    check_alive,
    count_collapsed,
    shares,
    uniforms,
    usable,
)
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Floats, Measure, chunk_size, fetch, pick, ship
from mlmcgrad.store import Remembered

# Draws of one part of the chains: enough to make the cost of a part vanish. Averaging has a cost
# that grows with the square of the steps of a part.
_PART_DRAWS = 2**16
_AVERAGED_STEPS = 128
# Steps of at most this many chains are made one by one: a call of NumPy takes as long as sixteen.
_FEW = 16
# The logarithm of a sum of weights that are all 0: less than any other, but no infinity, from which
# that of a draw without weight could not be subtracted.
_NOTHING = -1e300
# A draw that is kept with a smaller probability is forgotten between two parts of a chain.
_NEGLIGIBLE = 2.0**-64


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
        rao_blackwell: replace the random choice of the kept state by its exact conditional
            distribution given the draws. This reduces the variance without further evaluations of
            `log_weight`, but needs more arithmetic.
        chunk: rows that are drawn and weighted in one call: it bounds the memory. By default 1024
            on a processor and 8192 on other devices.

    `x0=None` starts every chain with a draw of q, so that the first step has k independent draws;
    x0 may also be states, or `store.start(rows)` of a `Store`: rows without a state start with a
    draw of q.

    Reference:
        Tjelmeland (2004); Cardoso, Samsonov, Thin, Moulines, Olsson (2022), "BR-SNIS: bias
        reduced self-normalized importance sampling".
    """

    rao_blackwell: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        whole(self.candidates, "candidates", 2)
        if self.chunk is not None:
            whole(self.chunk, "chunk")

    def parts(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Generator[WeightedPiece, None, Outcome]:
        """Simulate, with the weights within the first block only; short chains are one piece.

        The weights are those of draws of q: a state that x0 brought is not among them.
        """
        kept = int(x0 is not None)
        order = torch.from_numpy(lengths.longest.numpy().argsort(kind="stable"))
        lengths = lengths.select(order)
        start, law = self._start(x0, context, order, generator), None
        last, carried = torch.empty(0), torch.zeros(0, dtype=torch.float64)
        select = rao_blackwell if self.rao_blackwell else sampled
        evaluations, moves, invalid, collapsed = 0, 0.0, 0, 0
        first = FirstWeights(np.zeros(0), np.zeros((0, self.candidates - kept)))
        for begin, end in self._parts(lengths.longest):
            if begin > 0:
                running = lengths.longest > begin
                lengths, order = lengths.select(running), order[running]
            steps = lengths.longest.clamp(max=end) - begin
            draws, z, owner, u, bad = self._draw(start, law, context, order, steps, generator)
            share, began = np.zeros(len(owner)), first
            if begin == 0:
                began, collapsed = _first_block(draws, order, kept, share)
                last = torch.empty_like(z[: len(order)])
            selection = select(draws, lengths.flat(begin + 1, end), u)
            coefficient = selection.coefficient
            if begin > 0:
                coefficient[draws.first[:, None] + torch.arange(draws.starts)] += carried
            evaluations += len(owner) - carried.numel()
            moves, invalid = moves + selection.moves, invalid + bad
            ended = int((lengths.longest <= end).sum())  # the shortest come first
            last.index_copy_(0, ship(order[:ended], z.device), pick(z, selection.kept[:ended]))
            if ended < len(order):
                held, law = still_possible(draws, selection, len(order) - ended)
                start = pick(z, held.flatten()).unflatten(0, held.shape), draws.log_w[held]
                # A draw that goes on is not in the measure yet: it would be paid for twice.
                carried, coefficient[held] = coefficient[held], 0.0
            yield WeightedPiece(Measure(z, owner, coefficient), torch.from_numpy(share), began)
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
        start: tuple[Tensor, Tensor] | None,
        law: Tensor | None,
        context: Context,
        chains: Tensor,
        steps: Tensor,
        generator: torch.Generator,
    ) -> tuple[Draws, Tensor, Tensor, Tensor, int]:
        """All candidates of steps of these chains, which begin with those given in `start`.

        Returns:
            Their weights; the candidates, (draws, *shape); the chain of each, (draws,); the
            uniforms of the selection; and how many weights were NaN or +∞.
        """
        starts = 1 if law is None else law.shape[1]
        counts = starts + (self.candidates - 1) * steps
        owner = chains.repeat_interleave(counts)  # (draws,)
        if start is None:
            states, weights = self.fresh(context, owner, generator)
            z, log_w = torch.cat(states), torch.cat(weights)
        else:
            given = torch.zeros(len(owner), dtype=torch.bool)
            begin = counts.cumsum(0) - counts
            given[(begin[:, None] + torch.arange(starts)).flatten()] = True
            states, weights = self.fresh(context, owner[~given], generator)
            z, log_w = (
                _insert(*each, given) for each in zip((states, weights), start, strict=True)
            )
        size = (len(steps),) if self.rao_blackwell else (2, int(steps.sum()))
        log_w, u = fetch(log_w, uniforms(generator, *size))
        usual, bad = usable(log_w)
        draws = Draws(torch.from_numpy(usual), steps, self.candidates - 1, law)
        return draws, z, owner, u, bad

    @torch.no_grad()
    def _start(
        self, x0: Start, context: Context, chains: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor] | None:
        """Return the states that x0 holds and their log weights, (chains, 1) both."""
        if x0 is None:
            return None
        states = self._complete(x0, context, generator) if isinstance(x0, Remembered) else x0
        z = pick(states.detach(), chains)
        size = chunk_size(self.chunk, z.device)
        pieces = [
            self.weigh(part, take(context, who))
            for part, who in zip(z.split(size), chains.split(size), strict=True)
        ]
        return z[:, None], torch.cat(pieces)[:, None]

    def _complete(self, x0: Remembered, context: Context, generator: torch.Generator) -> Tensor:
        """The states of a store, and draws of q where it has none."""
        known = x0.known.cpu()
        new = (~known).nonzero()[:, 0]
        if not len(new):
            return x0.points
        size = chunk_size(self.chunk, generator.device)
        drawn = [self.draw(take(context, who), len(who), generator) for who in new.split(size)]
        return _insert(drawn, pick(x0.points, known.nonzero()[:, 0])[:, None], known)


def _insert(chunks: list[Tensor], start: Tensor, where: Tensor) -> Tensor:
    """Put starting states, (chains, starts, …), into some rows and fresh draws into the others."""
    start = start.flatten(0, 1)
    if not chunks:
        return start
    drawn = torch.cat(chunks)
    if drawn.shape[1:] != start.shape[1:] or drawn.dtype != start.dtype:
        raise ValueError(
            f"x0 must look like a draw of propose, {described(drawn[0])} for each chain, got "
            f"{described(start[0])}"
        )
    given = where.numpy()
    order = np.empty(len(given), dtype=np.int64)
    order[given], order[~given] = np.arange(len(start)), len(start) + np.arange(len(drawn))
    return pick(torch.cat([start, drawn]), torch.from_numpy(order))


def _first_block(
    draws: Draws, chains: Tensor, kept: int, share: Floats
) -> tuple[FirstWeights, int]:
    """Return weights of the first block, also put into `share`, and the number of collapsed chains.

    Refuses chains without any weight; the first `kept` candidates are not draws of q.
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


@dataclass(frozen=True)
class Draws:
    """Log weights of the candidates of all chains.

    Chain by chain in ascending order of length: the starting states, then t blocks of k−1 draws.
    """

    log_w: Tensor  # (draws,) float64
    lengths: Tensor  # (chains,) int64, ascending: t of each chain
    fresh: int  # k−1
    law: Tensor | None = None  # (chains, starts): law of the kept state; None: there is one start

    @property
    def starts(self) -> int:
        """How many starting states each chain has."""
        return 1 if self.law is None else self.law.shape[1]

    @cached_property
    def first(self) -> Tensor:
        """Where each chain begins, (chains,)."""
        counts = self.starts + self.fresh * self.lengths
        return counts.cumsum(0) - counts

    @cached_property
    def chain(self) -> Tensor:
        """Which chain each block belongs to, (blocks,); in the same order as the draws."""
        return torch.repeat_interleave(self.lengths)

    @cached_property
    def block(self) -> Tensor:
        """Where each block begins, (blocks,): before it are blocks, and the starts of chains."""
        return self.starts * (1 + self.chain) + self.fresh * torch.arange(len(self.chain))

    @cached_property
    def step(self) -> Tensor:
        """Number of the step that each block belongs to, (blocks,), counted from 1."""
        return 1 + (self.block - pick(self.first, self.chain) - self.starts) // self.fresh

    @cached_property
    def places(self) -> Tensor:
        """Where the fresh candidates are, (blocks, k−1)."""
        return self.block[:, None] + torch.arange(self.fresh)

    @cached_property
    def new(self) -> Tensor:
        """Log weights of the fresh candidates, (blocks, k−1)."""
        return pick(self.log_w, self.places.flatten()).reshape(self.places.shape)


class Selection(NamedTuple):
    """Outcome of the selection."""

    coefficient: Tensor  # (draws,) float64: Σ_p weight_p · p'_p
    kept: Tensor  # (chains,) int64: index of the state at the end, among the draws
    moves: float  # (expected) number of steps that left the kept state, over all chains
    law: Tensor | None = None  # (draws,) float64: of the state kept at the end; None: it is `kept`


def sampled(draws: Draws, weights: Tensor, u: Tensor) -> Selection:
    """Selection with a random choice of the kept state (Algorithm 3 of the paper).

    Args:
        draws: the candidates, with one starting state for each chain.
        weights: weight of each step in the estimator, (blocks,) float64.
        u: two uniforms for each step, (2, blocks).
    """
    return choose_sampled(draws, weights, *u)[0]


def choose_sampled(
    draws: Draws, weights: Tensor, choice: Tensor, leave: Tensor
) -> tuple[Selection, Tensor]:
    """`sampled` for given uniforms, (blocks,); also returns the staying probabilities, (blocks,).

    A step leaves the kept state if `leave` is at least the staying probability, for the candidate
    that `choice` picks from the block.
    """
    log_sum, share = (torch.from_numpy(found) for found in shares(draws.new.numpy()))
    # The candidate that a step would move to does not depend on the kept state: all at once.
    picked = draws.block + _pick(share, choice)
    # leave ≥ sigmoid(log w_s − log S) is log w_s ≤ logit(leave) + log S: what is left to do step by
    # step are comparisons, which NumPy makes in a third of the time.
    bar = leave.logit() + log_sum
    # Step by step, so that each step is a slice.
    order = torch.from_numpy(draws.step.numpy().argsort(kind="stable"))
    holder, kept = _follow(draws, *(pick(c, order) for c in (bar, picked)))
    holder = torch.empty_like(holder).index_copy_(0, order, holder)  # block by block
    log_kept = pick(draws.log_w, holder)
    stay = torch.sigmoid(log_kept - log_sum)
    coefficient = torch.zeros_like(draws.log_w)
    coefficient[draws.places] = (weights * (1.0 - stay))[:, None] * share
    coefficient.index_add_(0, holder, weights * stay)
    return Selection(coefficient, kept, float((log_kept <= bar).sum())), stay


def _follow(draws: Draws, bar: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
    """The draw that is kept before each step, (blocks,), step by step; and at the end, (chains,).

    Args:
        draws: the candidates.
        bar: the largest log weight that is left in a step, (blocks,), step by step.
        candidate: the draw that a step moves to, in the same order.
    """
    bars, candidates, log_w = bar.numpy(), candidate.numpy(), draws.log_w.numpy()
    log_candidates, holder = log_w[candidates], np.empty_like(candidates)
    kept, begin = draws.first.numpy(), 0
    log_kept, ended = log_w[kept], []
    counts = np.bincount(draws.step.numpy())[1:]  # chains that make each step
    running, many = counts.tolist(), np.count_nonzero(counts > _FEW)
    for count in running[:many]:
        finished = len(kept) - count
        if finished:
            ended.append(kept[:finished])
            kept, log_kept = kept[finished:], log_kept[finished:]
        rows = slice(begin, begin + count)
        holder[rows] = kept
        moved = log_kept <= bars[rows]
        kept = np.where(moved, candidates[rows], kept)
        log_kept = np.where(moved, log_candidates[rows], log_kept)
        begin += count
    # Of few chains a step takes less time one by one. The last ones go on longest.
    state, log_state, last = kept.tolist(), log_kept.tolist(), []
    steps = zip(*(a[begin:].tolist() for a in (bars, candidates, log_candidates)), strict=True)
    for count in running[many:]:
        for chain in range(len(state) - count, len(state)):
            limit, new, log_new = next(steps)
            last.append(state[chain])
            if log_state[chain] <= limit:
                state[chain], log_state[chain] = new, log_new
    holder[begin:] = last
    return torch.from_numpy(holder), torch.from_numpy(np.concatenate([*ended, state]))


@QUIET
def rao_blackwell(draws: Draws, weights: Tensor, u: Tensor) -> Selection:
    """Selection averaged over the random choices: carries the law of the kept state.

    Args:
        draws: the candidates.
        weights: weight of each step in the estimator, (blocks,) float64.
        u: a uniform for each chain, (chains,): it chooses the state at the end, and has no part in
            the coefficients.
    """
    lengths, starts, fresh = draws.lengths.numpy(), draws.starts, draws.fresh
    chains, steps = len(lengths), int(lengths[-1])
    # A row for each chain, so that a step of all of them is a few calls: each has seen as many
    # candidates before it.
    seen = np.arange(starts + fresh * steps) < (starts + fresh * lengths)[:, None]
    log_w = np.full(seen.shape, -np.inf)
    log_w[seen] = draws.log_w.numpy()
    at = draws.step.numpy() - 1, draws.chain.numpy()  # of each block
    log_sum, share = np.zeros((steps, chains)), np.zeros((steps, chains, fresh))
    log_sum[at], share[at] = shares(draws.new.numpy())
    log_sum[log_sum == -np.inf] = _NOTHING
    weight = np.zeros_like(log_sum)
    weight[at] = weights.numpy()
    law, coefficient, moves = np.zeros_like(log_w), np.zeros_like(log_w), 0.0
    law[:, :starts] = 1.0 if draws.law is None else draws.law.numpy()
    running = np.searchsorted(lengths, np.arange(1, steps + 1))  # the first chain of each step
    for p, first in enumerate(running.tolist()):
        old = starts + p * fresh  # candidates seen before this step
        odds = log_sum[p, first:, None] - log_w[first:, :old]
        np.exp(odds, out=odds)
        odds += 1.0
        held = law[first:, : old + fresh]
        held[:, :old] /= odds
        left = 1.0 - held[:, :old].sum(1)
        np.multiply(left[:, None], share[p, first:], out=held[:, old:])
        coefficient[first:, : old + fresh] += weight[p, first:, None] * held
        moves += float(left.sum())
    kept = draws.first + _pick(torch.from_numpy(law), u)
    return Selection(torch.from_numpy(coefficient[seen]), kept, moves, torch.from_numpy(law[seen]))


def still_possible(draws: Draws, selection: Selection, chains: int) -> tuple[Tensor, Tensor]:
    """The draws that the last chains may have kept at the end, and the law on them.

    Args:
        draws: the candidates.
        selection: what was selected from them.
        chains: the number of chains that go on; they all have the same length.

    Returns:
        Indices among the draws and probabilities, (chains, draws held) both.
    """
    first = draws.first[len(draws.first) - chains :, None]
    kept = selection.kept[len(draws.first) - chains :, None]
    if selection.law is None or not chains:
        return kept, torch.ones_like(kept, dtype=draws.log_w.dtype)
    law = selection.law[int(first[0]) :].reshape(chains, -1)
    # What is lost goes to the next block: `_averaged` gives it whatever the held draws leave.
    held = int((law > _NEGLIGIBLE).sum(1).max())
    place = law.topk(held, dim=1).indices.sort(1).values
    return first + place, law.gather(1, place)


def _pick(share: Tensor, u: Tensor) -> Tensor:
    """Index drawn by the shares along the last dimension (inverse CDF)."""
    cumulative = share.cumsum(-1)
    reached = cumulative > u[..., None] * cumulative[..., -1:]
    return reached.int().argmax(-1)
