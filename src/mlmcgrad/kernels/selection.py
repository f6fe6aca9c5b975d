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
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Selection(NamedTuple):
    """Outcome of the selection for chains of equal length t, with m = 1 + t(k−1) candidates."""

    coefficient: Tensor  # (chains, m): Σ_p weight_p · p'_p, candidate 0 is the starting state
    kept: Tensor  # (chains,) int64: index of the state at the end, among the m
    moves: float  # (expected) number of steps that left the kept state, over all chains


def sampled(start: Tensor, new: Tensor, weights: Tensor, generator: torch.Generator) -> Selection:
    """Selection with a random choice of the kept state (Algorithm 3 of the paper).

    Args:
        start: log weights of the starting states, (chains,) float64.
        new: log weights of the fresh candidates, (chains, steps, k−1).
        weights: weight of each step in the estimator, (chains, steps) float64.
        generator: source of the randomness: two uniforms for each step.
    """
    chains, steps, _ = new.shape
    options: Any = {"dtype": new.dtype, "device": new.device, "generator": generator}
    choice = torch.rand(chains, steps, **options)
    leave = torch.rand(chains, steps, **options)
    selection, _ = choose_sampled(start, new, weights, choice, leave)
    return selection


def choose_sampled(
    start: Tensor, new: Tensor, weights: Tensor, choice: Tensor, leave: Tensor
) -> tuple[Selection, Tensor]:
    """`sampled` for given uniforms; also returns the staying probabilities, (chains, steps).

    Step p leaves the kept state if `leave[:, p]` is at least the staying probability, for the
    candidate that `choice[:, p]` picks from the block.
    """
    chains, steps, fresh = new.shape
    log_sum, share = _block(new)
    # The candidate that a step would move to does not depend on the kept state: all at once.
    picked = _pick(share, choice)  # (chains, steps), position in the block
    log_picked = new.gather(2, picked[..., None])[..., 0]
    index_picked = 1 + fresh * torch.arange(steps, device=new.device) + picked
    kept, log_kept = torch.zeros_like(picked[:, 0]), start
    stay, holder = torch.empty_like(choice), torch.empty_like(picked)
    for p in range(steps):
        stay[:, p], holder[:, p] = torch.sigmoid(log_kept - log_sum[:, p]), kept
        moved = leave[:, p] >= stay[:, p]
        kept = torch.where(moved, index_picked[:, p], kept)
        log_kept = torch.where(moved, log_picked[:, p], log_kept)
    coefficient = new.new_zeros(chains, 1 + steps * fresh)
    coefficient[:, 1:] = ((weights * (1.0 - stay))[..., None] * share).flatten(1)
    coefficient.scatter_add_(1, holder, weights * stay)
    moves = float((leave >= stay).sum())
    return Selection(coefficient, kept, moves), stay


def rao_blackwell(
    start: Tensor, new: Tensor, weights: Tensor, generator: torch.Generator
) -> Selection:
    """Selection averaged over the random choices: carries the law of the kept state.

    Args:
        start: log weights of the starting states, (chains,) float64.
        new: log weights of the fresh candidates, (chains, steps, k−1).
        weights: weight of each step in the estimator, (chains, steps) float64.
        generator: source of the randomness for the state at the end; the coefficients take none.
    """
    chains, steps, fresh = new.shape
    log_sum, share = _block(new)
    log_w = torch.cat([start[:, None], new.flatten(1)], 1)  # (chains, m)
    law = torch.zeros_like(log_w)
    law[:, 0] = 1.0
    coefficient = torch.zeros_like(log_w)
    moves = 0.0
    for p in range(steps):
        old = 1 + p * fresh  # candidates seen before this step
        # −∞ − (−∞): a draw without weight has no part in the law, whatever the block.
        gap = (log_w[:, :old] - log_sum[:, p, None]).nan_to_num(nan=-torch.inf)
        stay = law[:, :old] * torch.sigmoid(gap)
        left = 1.0 - stay.sum(1, keepdim=True)
        law[:, :old] = stay
        law[:, old : old + fresh] = left * share[:, p]
        coefficient[:, : old + fresh] += weights[:, p, None] * law[:, : old + fresh]
        moves += float(left.sum())
    u = torch.rand(chains, dtype=new.dtype, device=new.device, generator=generator)
    return Selection(coefficient, _pick(law, u), moves)


def _block(new: Tensor) -> tuple[Tensor, Tensor]:
    """Block sums log S_p, (chains, steps), and shares w_j / S_p, 0 where S_p = 0."""
    log_sum = new.logsumexp(2)
    share = torch.where(log_sum[..., None] > -torch.inf, new.softmax(2), 0.0)
    return log_sum, share


def _pick(share: Tensor, u: Tensor) -> Tensor:
    """Index drawn by the shares along the last dimension (inverse CDF)."""
    cumulative = share.cumsum(-1)
    reached = cumulative > u[..., None] * cumulative[..., -1:]
    return reached.int().argmax(-1)


__all__ = ["Selection", "choose_sampled", "rao_blackwell", "sampled"]
