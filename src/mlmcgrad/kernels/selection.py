"""The selection steps of i-SIR, as arithmetic on log weights; no model is evaluated here.

A chain of t steps has a starting state (log weight a_0) and t blocks of k−1 fresh candidates. With
S_p the sum of the weights in block p, a kept state s stays with probability

    σ_p(s) = w_s / (w_s + S_p) = sigmoid(log w_s − log S_p),

and when it is left, the new state is candidate j of the block with probability w_j / S_p, whatever
s was. Hence, for the law p of the kept state,

    p'(old j) = p(j) σ_p(j),     p'(new j) = (w_j / S_p) Σ_s p(s) (1 − σ_p(s)),

and p' is also what the candidates of step p weigh in H(X_p). `sampled` draws the kept state and so
has a point mass for p before each step (Algorithm 3); `rao_blackwell` carries all of p. The sigmoid
form never over- or underflows: weights with a spread of hundreds of nats are fine.

A long chain can be cut into parts: what a part needs of the one before is p, that is the draws that
may still be kept, with their weights and probabilities.

Chains of all lengths are one flat list (`Draws`), sorted by length, so that nothing is padded: the
chains that are still running after p steps are the last ones. They are on the host, wherever the
model is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.kernels.groups import shares, uniforms
from mlmcgrad.measure import pick

# Steps of so few chains are made one by one: a call of NumPy takes as long as sixteen of them.
_FEW = 16
# A draw that is kept with a smaller probability is forgotten between two parts of a chain.
_NEGLIGIBLE = 2.0**-64


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
        chains = torch.arange(len(self.lengths), device=self.lengths.device)
        return chains.repeat_interleave(self.lengths)

    @cached_property
    def block(self) -> Tensor:
        """Where each block begins, (blocks,): before it are blocks, and the starts of chains."""
        blocks = torch.arange(len(self.chain), device=self.chain.device)
        return self.starts * (1 + self.chain) + self.fresh * blocks

    @cached_property
    def step(self) -> Tensor:
        """Number of the step that each block belongs to, (blocks,), counted from 1."""
        return 1 + (self.block - pick(self.first, self.chain) - self.starts) // self.fresh

    @property
    def starting(self) -> Tensor:
        """Where the starting states are, (chains, starts)."""
        return self.first[:, None] + torch.arange(self.starts, device=self.first.device)

    @cached_property
    def start(self) -> Tensor:
        """Log weights of the starting states, the first of each chain, (chains,)."""
        return pick(self.log_w, self.first)

    @cached_property
    def new(self) -> Tensor:
        """Log weights of the fresh candidates, (blocks, k−1)."""
        return pick(self.log_w, self._fresh.flatten()).reshape(self._fresh.shape)

    def spread(self, values: Tensor) -> Tensor:
        """One number for each draw, (draws,), from those of the blocks, (blocks, k−1), and 0."""
        all_draws = torch.zeros_like(self.log_w)
        all_draws[self._fresh] = values
        return all_draws

    @cached_property
    def _fresh(self) -> Tensor:
        return self.block[:, None] + torch.arange(self.fresh, device=self.block.device)


class Selection(NamedTuple):
    """Outcome of the selection."""

    coefficient: Tensor  # (draws,) float64: Σ_p weight_p · p'_p
    kept: Tensor  # (chains,) int64: index of the state at the end, among the draws
    moves: float  # (expected) number of steps that left the kept state, over all chains
    law: Tensor | None = None  # (draws,) float64: of the state kept at the end; None: it is `kept`


def sampled(draws: Draws, weights: Tensor, generator: torch.Generator) -> Selection:
    """Selection with a random choice of the kept state (Algorithm 3 of the paper).

    Args:
        draws: the candidates, with one starting state for each chain.
        weights: weight of each step in the estimator, (blocks,) float64.
        generator: source of the randomness: two uniforms for each step.
    """
    choice, leave = uniforms(generator, 2, len(weights))
    return choose_sampled(draws, weights, choice, leave)[0]


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
    coefficient = draws.spread((weights * (1.0 - stay))[:, None] * share)
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


def rao_blackwell(draws: Draws, weights: Tensor, generator: torch.Generator) -> Selection:
    """Selection averaged over the random choices: carries the law of the kept state.

    Args:
        draws: the candidates.
        weights: weight of each step in the estimator, (blocks,) float64.
        generator: source of the randomness for the state at the end; the coefficients take none.
    """
    coefficients, laws, kept, moves, begin, block, chain = [], [], [], 0.0, 0, 0, 0
    known = torch.ones_like(draws.start)[:, None] if draws.law is None else draws.law
    for length, chains in zip(
        *(n.tolist() for n in draws.lengths.unique(return_counts=True)), strict=True
    ):
        # Chains of equal length are a rectangle.
        m, steps = draws.starts + length * draws.fresh, length * chains
        log_w = draws.log_w[begin : begin + chains * m].reshape(chains, m)
        weight = weights[block : block + steps].reshape(chains, length)
        law, coefficient, moved = _averaged(log_w, known[chain : chain + chains], weight)
        u = uniforms(generator, chains)
        coefficients.append(coefficient.flatten())
        laws.append(law.flatten())
        kept.append(_pick(law, u))
        begin, block, chain = begin + chains * m, block + steps, chain + chains
        moves += moved
    kept_at = draws.first + torch.cat(kept)
    return Selection(torch.cat(coefficients), kept_at, moves, torch.cat(laws))


def _averaged(log_w: Tensor, start: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, float]:
    """Law of the kept state at the end, coefficients, (chains, m) both, and expected moves.

    Args:
        log_w: log weights of chains of t steps, (chains, m) with m = starts + t(k−1).
        start: law of the kept state at the start, (chains, starts).
        weights: weight of each step, (chains, t).
    """
    (chains, steps), starts = weights.shape, start.shape[1]
    log_sum, share = _block(log_w[:, starts:].reshape(chains, steps, -1))
    fresh = share.shape[2]
    law = torch.zeros_like(log_w)
    law[:, :starts] = start
    coefficient = torch.zeros_like(log_w)
    moves = 0.0
    for p in range(steps):
        old = starts + p * fresh  # candidates seen before this step
        # −∞ − (−∞): a draw without weight has no part in the law, whatever the block.
        gap = (log_w[:, :old] - log_sum[:, p, None]).nan_to_num(nan=-torch.inf)
        stay = law[:, :old] * torch.sigmoid(gap)
        left = 1.0 - stay.sum(1, keepdim=True)
        law[:, :old] = stay
        law[:, old : old + fresh] = left * share[:, p]
        coefficient[:, : old + fresh] += weights[:, p, None] * law[:, : old + fresh]
        moves += float(left.sum())
    return law, coefficient, moves


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


def _block(new: Tensor) -> tuple[Tensor, Tensor]:
    """Block sums log S_p, (…,), and shares w_j / S_p, (…, k−1), 0 where S_p = 0."""
    log_sum = new.logsumexp(-1)
    share = torch.where(log_sum[..., None] > -torch.inf, new.softmax(-1), 0.0)
    return log_sum, share


def _pick(share: Tensor, u: Tensor) -> Tensor:
    """Index drawn by the shares along the last dimension (inverse CDF)."""
    cumulative = share.cumsum(-1)
    reached = cumulative > u[..., None] * cumulative[..., -1:]
    return reached.int().argmax(-1)
