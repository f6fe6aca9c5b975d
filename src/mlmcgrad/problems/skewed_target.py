"""A skewed target with closed-form moments: symmetry would hide sign errors.

X_i = log G_i with G_i ~ Gamma(a_i), independent, so that π(x) ∝ exp(Σ_i a_i x_i − e^{x_i}):

    E[X] = ψ(a),   Var X = ψ'(a),   E[(X − EX)³] = ψ''(a) < 0,   E[e^X] = a.

    loss_θ(x) = ½‖x − θ‖²,     ∇V(θ) = θ − ψ(a).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Skewed:
    """The problem at one θ, made by `skewed`."""

    theta: Tensor  # (d,), a leaf
    shape: Tensor  # (d,): a

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the loss."""
        return (self.theta,)

    @property
    def mean(self) -> Tensor:
        """ψ(a)."""
        return torch.special.digamma(self.shape)

    @property
    def variance(self) -> Tensor:
        """ψ'(a)."""
        return torch.special.polygamma(1, self.shape)

    @property
    def third_moment(self) -> Tensor:
        """Third central moment ψ''(a)."""
        return torch.special.polygamma(2, self.shape)

    def log_density(self, x: Tensor) -> Tensor:
        """Log π(x) up to a constant, (chains,)."""
        return (self.shape * x - x.exp()).sum(1)

    def loss(self, x: Tensor) -> Tensor:
        """½‖x − θ‖², (chains,)."""
        return 0.5 * (x - self.theta).square().sum(1)

    def start(self, chains: int) -> Tensor:
        """All chains at 1 in every coordinate."""
        return torch.ones(chains, len(self.shape), dtype=self.shape.dtype)

    def sample(self, chains: int, generator: torch.Generator) -> Tensor:
        """Independent draws of π, for integer a: Gamma(a) is then a sum of a exponentials.

        (torch's own gamma sampler accepts no generator.)
        """
        largest = int(self.shape.max())
        u = torch.rand(
            chains, len(self.shape), largest, dtype=self.shape.dtype, generator=generator
        )
        used = torch.arange(largest) < self.shape[:, None]  # (d, largest)
        return torch.where(used, -torch.log1p(-u), 0.0).sum(2).log()

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """∇V(θ) = θ − ψ(a)."""
        return (self.theta.detach() - self.mean,)


def skewed(dimension: int = 2) -> Skewed:
    """Make a problem with a = 1, 2, 3, 1, 2, 3, ….

    Example:
        >>> skewed().shape.tolist()
        [1.0, 2.0]
    """
    return Skewed(
        theta=torch.zeros(dimension, dtype=torch.float64, requires_grad=True),
        shape=1.0 + torch.arange(dimension, dtype=torch.float64) % 3,
    )
