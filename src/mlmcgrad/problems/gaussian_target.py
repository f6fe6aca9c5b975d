"""A Gaussian target with known moments.

π = N(m, Σ),     loss_θ(x) = ½‖x − θ‖²,     V(θ) = ½‖θ − m‖² + const,     ∇V(θ) = θ − m.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gaussian:
    """The problem at one θ, made by `gaussian`."""

    theta: Tensor  # (d,), a leaf
    mean: Tensor  # (d,)
    factor: Tensor  # (d, d): lower Cholesky factor of Σ

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the loss."""
        return (self.theta,)

    @property
    def covariance(self) -> Tensor:
        """Σ."""
        return self.factor @ self.factor.T

    def log_density(self, x: Tensor) -> Tensor:
        """Log π(x) up to a constant, (chains,)."""
        white = torch.linalg.solve_triangular(self.factor, (x - self.mean).T, upper=False)
        return -0.5 * white.square().sum(0)

    def loss(self, x: Tensor) -> Tensor:
        """½‖x − θ‖², (chains,)."""
        return 0.5 * (x - self.theta).square().sum(1)

    def start(self, chains: int) -> Tensor:
        """All chains at the origin."""
        return torch.zeros(chains, len(self.mean), dtype=self.mean.dtype)

    def sample(self, chains: int, generator: torch.Generator) -> Tensor:
        """Independent draws of π."""
        z = torch.randn(chains, len(self.mean), dtype=self.mean.dtype, generator=generator)
        return self.mean + z @ self.factor.T

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """∇V(θ) = θ − m."""
        return (self.theta.detach() - self.mean,)


def gaussian(dimension: int = 2, correlation: float = 0.5) -> Gaussian:
    """Make a problem with means 1, −½, ⅓, … and standard deviations 1, 2, 1, 2, ….

    Args:
        dimension: d.
        correlation: between any two coordinates.

    Example:
        >>> gaussian(dimension=3).mean.tolist()
        [1.0, -0.5, 0.3333333333333333]
    """
    index = torch.arange(1, dimension + 1, dtype=torch.float64)
    scale = 2.0 - index % 2
    matrix = torch.full((dimension, dimension), correlation, dtype=torch.float64)
    matrix.fill_diagonal_(1.0)
    return Gaussian(
        theta=torch.zeros(dimension, dtype=torch.float64, requires_grad=True),
        mean=-((-1.0) ** index) / index,
        factor=torch.linalg.cholesky(matrix * scale[:, None] * scale),
    )
