"""Estimators as signed measures on lengths: Ĥ = Σ_j a_j H^{(p_j)}, Σ_j a_j = 1.

H^{(p)} is the estimate from a simulation of length p. The measure is stored as weights per step,
w_j = a_j / p_j, so that weights that must cancel (in the burn-in, and in the first steps of the
paper's estimator) are exactly 0.

For a Markov chain H^{(p)} is the average over the first p steps, so step i has the weight

    Σ_{j : p_j ≥ i} w_j,

which is piecewise constant with few pieces: chains of two steps and of two million steps take the
same memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Lengths:
    """How long each chain runs, and the weight of the estimate at each of a few lengths.

    Kept on the host, wherever the chains are, so that all shapes of a simulation are known in
    advance.
    """

    levels: Tensor  # (chains,) int64: the level K drawn; 0 where the estimator has no levels
    terms: Tensor  # (chains, terms) int64: p_j, non-decreasing along the terms
    weights: Tensor  # (chains, terms) float64: w_j = a_j / p_j
    cut: int = 0  # chains that a budget made shorter than their level asks for
    bound: int | None = None  # the longest chain that could be drawn, if the estimator knows
    endless: bool = False  # whether there is no truncation but a budget

    @cached_property
    def longest(self) -> Tensor:
        """Length of each simulation, (chains,): the largest p_j."""
        return self.terms[:, -1]

    @property
    def largest_step_weight(self) -> Tensor:
        """Size of the largest weight of a step of each chain, (chains,)."""
        return self.weights.flip(1).cumsum(1).abs().amax(1)

    def correction(self) -> Lengths:
        """Return the same simulations, with the measure of the shortest length subtracted.

        The weights of a simulation sum to 0: the estimate is a sample of the bias, with the sign
        reversed, that `Average(p_1)` has and this estimator has not.
        """
        weights = self.weights.expand_as(self.terms).clone()
        weights[:, 0] -= 1.0 / self.terms[:, 0]
        return replace(self, weights=weights)

    def step_weights(self, first: int, last: int) -> Tensor:
        """Weights of the steps first … last of chains (counted from 1): (steps, chains)."""
        return self.at(torch.arange(first, last + 1)[:, None])

    def at(self, steps: Tensor) -> Tensor:
        """Weights of single steps, counted from 1; `steps` broadcasts against the chains."""
        weights = self.weights.new_zeros(())
        for length, value in self._pieces:
            weights = torch.where(steps <= length, value, weights)
        return weights

    def flat(self, first: int, last: int) -> Tensor:
        """Weights of the steps first … last of each chain that it has, (steps of all chains,)."""
        values = self.weights.flip(1).cumsum(1).flip(1)  # of the steps up to each length
        ends = self.terms.clamp(first - 1, last)
        counts = ends.diff(dim=1, prepend=torch.full_like(ends[:, :1], first - 1))
        return values.flatten().repeat_interleave(counts.flatten())

    def select(self, chains: Tensor | slice) -> Lengths:
        """The lengths of some of the chains, in the order given."""
        return Lengths(self.levels[chains], self.terms[chains], self.weights[chains])

    @cached_property
    def _pieces(self) -> list[tuple[Tensor, Tensor]]:
        """Where each piece of the step weights ends and its value, (chains,) each, last first."""
        values = self.weights.flip(1).cumsum(1)
        return list(zip(self.terms.flip(1).unbind(1), values.unbind(1), strict=True))


def check_lengths(chains: int, lengths: Lengths) -> None:
    """Raise a ValueError if these are not the lengths of this many chains."""
    if len(lengths.levels) != chains:
        raise ValueError(
            f"lengths must have a row for each of the {chains} chains, got {len(lengths.levels)}; "
            "take those of these chains, lengths.select(rows)"
        )


def join(parts: list[Lengths]) -> Lengths:
    """The chains of several parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    # As many terms each: one of length 1 without weight changes nothing.
    width = max(lengths.terms.shape[1] for lengths in parts)
    ahead = [(width - lengths.terms.shape[1], 0) for lengths in parts]
    terms = [pad(lengths.terms, by, value=1) for lengths, by in zip(parts, ahead, strict=True)]
    weights = [pad(lengths.weights, by) for lengths, by in zip(parts, ahead, strict=True)]
    levels = torch.cat([lengths.levels for lengths in parts])
    cut = sum(lengths.cut for lengths in parts)
    return Lengths(levels, torch.cat(terms), torch.cat(weights), cut)
