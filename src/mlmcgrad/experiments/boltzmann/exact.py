"""Exact answers for a machine with few hidden units, by enumeration of its 2^q hidden states.

    log Z = log Σ_h exp(c·h + Σ_i log(1 + e^{(Wh + a)_i}))

h is split into two halves: Wh is a sum of two tables, so that all of them take additions only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlmcgrad.kernels import Gibbs
from mlmcgrad.kernels.gibbs import binary_states


class Hidden:
    """All hidden states of a machine with their probabilities, as (2^r, 2^{q−r}) tables."""

    def __init__(self, machine: Gibbs, dtype: torch.dtype = torch.float64) -> None:
        weight, visible, hidden = (p.detach().to(dtype) for p in machine.parameters)
        cut = len(hidden) // 2
        self.left, self.right = (binary_states(n, dtype) for n in (cut, len(hidden) - cut))
        inside = self.left @ weight[:, :cut].T + visible  # (2^r, p)
        self.inside = inside[:, None] + (self.right @ weight[:, cut:].T)[None]  # Wh + a
        bias = (self.left @ hidden[:cut])[:, None] + self.right @ hidden[cut:]
        log_weights = bias + torch.nn.functional.softplus(self.inside).sum(2)
        self.log_partition = log_weights.flatten().logsumexp(0)
        self.law = (log_weights - self.log_partition).exp()

    def gradient(self) -> tuple[Tensor, Tensor, Tensor]:
        """∇log Z in W, a and c."""
        means = self.inside.sigmoid() * self.law[..., None]  # P(h) E[v | h]
        left, right = means.sum(1), means.sum(0)  # (states, p) of a half, summed over the other
        weight = torch.cat([left.T @ self.left, right.T @ self.right], 1)
        hidden = torch.cat([self.law.sum(1) @ self.left, self.law.sum(0) @ self.right])
        return weight, left.sum(0), hidden

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Independent draws of v, (count, p)."""
        chosen = torch.multinomial(self.law.flatten(), count, True, generator=generator)
        means = self.inside.flatten(0, 1)[chosen].sigmoid()
        return (torch.rand(means.shape, dtype=means.dtype, generator=generator) < means).to(means)


def log_likelihood(machine: Gibbs, data: Tensor) -> float:
    """Mean log p(v) of rows of data, in double precision."""
    double = Gibbs(*(parameter.detach().double() for parameter in machine.parameters))
    return float(-double.free_energy(data.double()).mean() - Hidden(double).log_partition)
