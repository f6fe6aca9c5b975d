"""Targets with known moments and the loss ½‖x − θ‖², so that V(θ) = ½‖θ − E X‖² + const.

`gaussian` has π = N(m, Σ). `skewed` has X_i = log G_i with G_i ~ Gamma(a_i), independent, so that
π(x) ∝ exp(Σ_i a_i x_i − e^{x_i}): symmetry would hide sign errors. With the polygamma functions ψ,

    E[X] = ψ(a),   Var X = ψ'(a),   E[(X − EX)³] = ψ''(a) < 0,   E[e^X] = a.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Target:
    """What both problems have in common."""

    theta: Tensor  # (d,), a leaf
    mean: Tensor  # (d,): E X

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the loss."""
        return (self.theta,)

    def loss(self, x: Tensor) -> Tensor:
        """Return ½‖x − θ‖², (chains,)."""
        return 0.5 * (x - self.theta).square().sum(1)

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """Return ∇V(θ) = θ − E X."""
        return (self.theta.detach() - self.mean,)


@dataclass(frozen=True)
class GaussianTarget(Target):
    """The problem at one θ, made by `gaussian`."""

    factor: Tensor  # (d, d): lower Cholesky factor of Σ

    @property
    def covariance(self) -> Tensor:
        """Σ."""
        return self.factor @ self.factor.T

    def log_density(self, x: Tensor) -> Tensor:
        """Return log π(x) up to a constant, (chains,)."""
        white = torch.linalg.solve_triangular(self.factor, (x - self.mean).T, upper=False)
        return -0.5 * white.square().sum(0)

    def start(self, chains: int) -> Tensor:
        """Start all chains at the origin."""
        return torch.zeros(chains, len(self.mean), dtype=self.mean.dtype)

    def sample(self, chains: int, generator: torch.Generator) -> Tensor:
        """Draw from π independently."""
        z = torch.randn(chains, len(self.mean), dtype=self.mean.dtype, generator=generator)
        return self.mean + z @ self.factor.T


def gaussian(dimension: int = 2, correlation: float = 0.5) -> GaussianTarget:
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
    return GaussianTarget(
        theta=torch.zeros(dimension, dtype=torch.float64, requires_grad=True),
        mean=-((-1.0) ** index) / index,
        factor=torch.linalg.cholesky(matrix * scale[:, None] * scale),
    )


@dataclass(frozen=True)
class Skewed(Target):
    """The problem at one θ, made by `skewed`."""

    shape: Tensor  # (d,): a

    @property
    def variance(self) -> Tensor:
        """ψ'(a)."""
        return torch.special.polygamma(1, self.shape)

    @property
    def third_moment(self) -> Tensor:
        """Third central moment ψ''(a)."""
        return torch.special.polygamma(2, self.shape)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log π(x) up to a constant, (chains,)."""
        return (self.shape * x - x.exp()).sum(1)

    def start(self, chains: int) -> Tensor:
        """Start all chains at 1 in every coordinate."""
        return torch.ones(chains, len(self.shape), dtype=self.shape.dtype)

    def sample(self, chains: int, generator: torch.Generator) -> Tensor:
        """Draw from π independently, for integer a: Gamma(a) is then a sum of a exponentials.

        (torch's own gamma sampler accepts no generator.)
        """
        largest = int(self.shape.max())
        u = torch.rand(
            chains, len(self.shape), largest, dtype=self.shape.dtype, generator=generator
        )
        used = torch.arange(largest) < self.shape[:, None]  # (d, largest)
        return torch.where(used, -torch.log1p(-u), 0.0).sum(2).log()


def skewed(dimension: int = 2) -> Skewed:
    """Make a problem with a = 1, 2, 3, 1, 2, 3, ….

    Example:
        >>> skewed().shape.tolist()
        [1.0, 2.0]
    """
    shape = 1.0 + torch.arange(dimension, dtype=torch.float64) % 3
    theta = torch.zeros(dimension, dtype=torch.float64, requires_grad=True)
    return Skewed(theta, mean=torch.special.digamma(shape), shape=shape)
