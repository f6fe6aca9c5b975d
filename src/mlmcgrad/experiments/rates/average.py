"""The average over the random iterate R, without drawing R.

Given the path θ_0 … θ_N the random iterate has P(R = n) ∝ w_n = γ_{n+1} λ_{n+1}, so

    E[‖∇V(θ_R)‖² | path] = Σ_{n≤N} w_n ‖∇V(θ_n)‖² / Σ_{n≤N} w_n

exactly, for every N of a grid from the same path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlmcgrad.problems import Sticky

_BLOCK = 256  # iterates whose gradients are computed together


class WeightedAverage:
    """The average for each replica, with weights w_0 … w_N, for increasing N of a grid."""

    def __init__(self, problem: Sticky, weights: Tensor, grid: list[int]) -> None:
        self.problem, self.weights, self.grid = problem, weights, grid
        self._sums = weights.cumsum(0)
        self._block: list[Tensor] = []
        self._n = 0  # θ_0 … θ_{n−1} are in the total
        self._total = torch.zeros(len(problem.theta), dtype=torch.float64)
        self._averages: list[Tensor] = []

    def add(self, theta: Tensor) -> None:
        """Add the next iterate, (replicas, 2)."""
        self._block.append(theta.detach().clone())
        if len(self._block) == _BLOCK:
            self._flush()

    def values(self) -> Tensor:
        """The averages, (grid, replicas)."""
        self._flush()
        return torch.stack(self._averages)

    def _flush(self) -> None:
        count = len(self._block)
        if not count:
            return
        theta = torch.stack(self._block)  # (iterates, replicas, 2)
        squares = self.problem.gradient(theta.flatten(0, 1)).square().sum(-1).view(count, -1)
        sums = (self.weights[self._n : self._n + count, None] * squares).cumsum(0) + self._total
        for N in self.grid:
            if self._n <= N < self._n + count:
                self._averages.append(sums[N - self._n] / self._sums[N])
        self._total, self._block, self._n = sums[-1], [], self._n + count
