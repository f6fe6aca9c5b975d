"""Continuous responses: gaussian for real numbers, gamma for positive ones.

Gaussian: y ~ N(η, σ²) with σ = `sigma`, log p = −½ z² − log σ − ½ log 2π, z = (y − η)/σ.

Gamma: a constant coefficient of variation, mean μ with log μ = η, and α = `shape`. With rate α/μ
and u = log y − η, and R and G as in `base.py`,

    log p = α log(α/μ) + (α − 1) log y − α y/μ − log Γ(α)
          = −α (e^u − 1 − u) + ½ log α − ½ log 2π − R(α) − log y
    ∂/∂η = α (e^u − 1),      −∂²/∂η² = α e^u,      ∂/∂ log α = −α (e^u − 1 − u) + α G(α)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mlmcgrad.mixed.families.base import (
    HALF_LOG_2PI,
    LogLink,
    Slopes,
    check_response,
    gap,
    remainder,
)


@final
@dataclass(frozen=True)
class Gaussian:
    """Normal responses with the identity link; the curvature is the observed one, σ^{−2}."""

    name: str = "gaussian"
    dispersion: str | None = "sigma"

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return log p, z/σ and σ^{−2}."""
        precision = torch.exp(-2.0 * log_dispersion)
        error = y - eta
        slope = error * precision
        value = -0.5 * error * slope - (log_dispersion + HALF_LOG_2PI)
        return value, slope, precision.expand_as(value)

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Return z² − 1."""
        z = (y - eta) * torch.exp(-log_dispersion)
        return z * z - 1.0

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return η."""
        return eta

    def variance(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return σ²."""
        return torch.exp(2.0 * log_dispersion).expand_as(eta)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw η + σ N(0, 1)."""
        noise = torch.empty_like(eta).normal_(generator=generator)
        return eta + torch.exp(log_dispersion) * noise

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Raise if a response is not finite, or if all are equal, so that σ would be 0."""
        check_response(self.name, y, trials, y.isfinite(), "finite", "leave out the row")
        _check_varies(self.name, y)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """Return the response itself."""
        return y


@final
@dataclass(frozen=True)
class Gamma(LogLink):
    """Positive responses with the log link; the curvature is the observed one."""

    name: str = "gamma"
    dispersion: str | None = "shape"

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return log p, ∂/∂η and −∂²/∂η²."""
        logs, shape = torch.log(y), torch.exp(log_dispersion)
        u = logs - eta
        slope = shape * torch.expm1(u)
        constant = 0.5 * log_dispersion - HALF_LOG_2PI - remainder(shape) - logs
        return constant - (slope - shape * u), slope, slope + shape

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Return ∂ log p/∂ log α."""
        u = torch.log(y) - eta
        shape = torch.exp(log_dispersion)
        return shape * gap(shape) - shape * (torch.expm1(u) - u)

    def variance(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return μ²/α."""
        return torch.exp(2.0 * eta - log_dispersion)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw μ times a gamma variable with mean 1."""
        shape = torch.exp(log_dispersion).expand_as(eta)
        return torch.exp(eta) * torch._standard_gamma(shape, generator=generator) / shape

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Raise if a response is not positive, or if all are equal, so that α would be ∞."""
        right = (y > 0.0) & y.isfinite()
        check_response(self.name, y, trials, right, "positive", "use 'gaussian'")
        _check_varies(self.name, y)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """Return log y."""
        return torch.log(y)


def _check_varies(name: str, y: Tensor) -> None:
    if bool((y == y[0]).all()):
        raise ValueError(f"a {name} response must vary, got {float(y[0])!r} in all rows")
