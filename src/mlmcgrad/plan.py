"""The signed measure on lengths that an estimator is: Ĥ = Σ_j a_j H^{(p_j)}, Σ_j a_j = 1.

H^{(p)} is the estimate that a simulation of length p gives. The measure is stored as weights a
step, w_j = a_j / p_j, so that what must cancel does so to an exact 0 (burn-in, and the first steps
of the paper's estimator).

For a Markov chain H^{(p)} is the average over the first p steps, so step i has the weight

    Σ_{j : p_j ≥ i} w_j,

which is piecewise constant with few pieces: a plan takes the same room for a chain of two steps
and of two million.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """How long each chain runs, and the weight of the estimate at each of a few lengths."""

    levels: Tensor  # (chains,) int64: the level K drawn; 0 where the estimator has no levels
    lengths: Tensor  # (chains, terms) int64: p_j, non-decreasing along the terms
    weights: Tensor  # (chains, terms) float64: w_j = a_j / p_j
    cut: int = 0  # chains that a budget made shorter than their level asks for

    @cached_property
    def longest(self) -> Tensor:
        """Length of each simulation, (chains,): the largest p_j."""
        return self.lengths[:, -1]

    @property
    def largest_step_weight(self) -> Tensor:
        """Size of the largest weight of a step of each chain, (chains,)."""
        return self.weights.flip(1).cumsum(1).abs().amax(1)

    def step_weights(self, first: int, last: int) -> Tensor:
        """Weights of the steps first … last of chains (counted from 1): (steps, chains)."""
        return self.at(torch.arange(first, last + 1, device=self.lengths.device)[:, None])

    def at(self, steps: Tensor, chains: Tensor | slice = slice(None)) -> Tensor:
        """Weights of single steps of chains, counted from 1.

        Args:
            steps: they broadcast against the chains.
            chains: which chain each belongs to; by default all, in order.
        """
        weights = self.weights.new_zeros(())
        for length, value in self._pieces:
            weights = torch.where(steps <= length[chains], value[chains], weights)
        return weights

    def flat(self, first: int, last: int) -> Tensor:
        """Weights of the steps first … last of each chain that it has, (steps of all chains,)."""
        values = self.weights.flip(1).cumsum(1).flip(1)  # of the steps up to each length
        ends = self.lengths.clamp(first - 1, last)
        counts = ends.diff(dim=1, prepend=torch.full_like(ends[:, :1], first - 1))
        return values.flatten().repeat_interleave(counts.flatten())

    def select(self, chains: Tensor | slice) -> Plan:
        """The plan of some of the chains, in the order given."""
        return Plan(self.levels[chains], self.lengths[chains], self.weights[chains])

    def to(self, device: torch.device) -> Plan:
        """The same plan with its tensors on another device."""
        return Plan(self.levels.to(device), self.lengths.to(device), self.weights.to(device))

    @cached_property
    def _pieces(self) -> list[tuple[Tensor, Tensor]]:
        """Where each piece of the step weights ends and its value, (chains,) each, last first."""
        values = self.weights.flip(1).cumsum(1)
        return list(zip(self.lengths.flip(1).unbind(1), values.unbind(1), strict=True))


def check_planned(chains: int, plan: Plan) -> None:
    """Refuse a plan of another number of chains."""
    if len(plan.levels) != chains:
        raise ValueError(
            f"plan must have a row for each of the {chains} chains, got {len(plan.levels)}; take "
            "those of these chains, plan.select(rows)"
        )


def joined(plans: list[Plan]) -> Plan:
    """The chains of several plans, one after the other."""
    if len(plans) == 1:
        return plans[0]
    terms = max(plan.lengths.shape[1] for plan in plans)

    def filled(tensor: Tensor, last: Tensor) -> Tensor:
        return torch.cat([tensor, last[:, None].expand(-1, terms - tensor.shape[1])], 1)

    return Plan(
        torch.cat([plan.levels for plan in plans]),
        torch.cat([filled(plan.lengths, plan.longest) for plan in plans]),
        torch.cat([filled(plan.weights, torch.zeros_like(plan.weights[:, 0])) for plan in plans]),
        sum(plan.cut for plan in plans),
    )
