"""A latent model with closed-form answers, in the shape that `Objective` expects of a network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mlmcgrad.iwae.networks import LatentModel


class _Encoder(nn.Module):
    def __init__(self, observed: int, latent: int) -> None:
        super().__init__()
        self.mean = nn.Linear(observed, latent, dtype=torch.float64)
        self.log_scale = nn.Parameter(torch.full((latent,), -0.3, dtype=torch.float64))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(y)
        return mean, self.log_scale.expand_as(mean)


class LinearModel(nn.Module):
    """z ~ N(0, I), y | z ~ N(Wz + b, σ²I); a Gaussian encoder that does not quite fit."""

    def __init__(self, observed: int = 3, latent: int = 1, noise: float = 0.7) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.encoder = _Encoder(observed, latent)
        self.decoder = nn.Linear(latent, observed, dtype=torch.float64)
        self.noise = noise
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(
                    0.6 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
                )
            self.encoder.log_scale.fill_(-0.3)

    def log_joint(self, z: Tensor, y: Tensor) -> Tensor:
        residual = (y - self.decoder(z)) / self.noise
        count = y.shape[1] + z.shape[1]
        constant = 0.5 * count * math.log(2.0 * math.pi) + y.shape[1] * math.log(self.noise)
        return -0.5 * residual.square().sum(1) - 0.5 * z.square().sum(1) - constant

    log_q = staticmethod(LatentModel.log_q)
    propose = staticmethod(LatentModel.propose)

    def log_weight(self, z: Tensor, y: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
        return self.log_joint(z, y) - self.log_q(z, mean, log_scale)

    def log_likelihood(self, y: Tensor) -> Tensor:
        """log p(y) as a differentiable function of the decoder's parameters."""
        w, b = self.decoder.weight, self.decoder.bias
        covariance = w @ w.T + self.noise**2 * torch.eye(len(b), dtype=y.dtype)
        return torch.distributions.MultivariateNormal(b, covariance).log_prob(y)

    def exact_gradient(self, y: Tensor) -> Tensor:
        """Gradient of −log p, mean over the rows, flattened over weight and bias."""
        parts = torch.autograd.grad(
            -self.log_likelihood(y).mean(), tuple(self.decoder.parameters())
        )
        return torch.cat([p.flatten() for p in parts])


def linear(**options: Any) -> Any:
    """A linear model, typed so that it may stand in for a network."""
    return LinearModel(**options)


def theta_gradient(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.decoder.parameters()])


def phi_gradient(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.encoder.parameters()])
