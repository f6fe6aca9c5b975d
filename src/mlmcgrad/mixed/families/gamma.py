"""Positive numbers with a constant coefficient of variation: mean μ, log μ = η, α = `shape`.

With rate α/μ and u = log y − η, and R and G of `stirling.py`,

    log p = α log(α/μ) + (α − 1) log y − α y/μ − log Γ(α)
          = −α (e^u − 1 − u) + ½ log α − ½ log 2π − R(α) − log y
    ∂/∂η = α (e^u − 1),      −∂²/∂η² = α e^u,      ∂/∂ log α = −α (e^u − 1 − u) + α G(α)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mlmcgrad.mixed.families.base import check_response, check_single
from mlmcgrad.mixed.families.stirling import HALF_LOG_2PI, gap, remainder


@final
@dataclass(frozen=True)
class Gamma:
    """Positive responses with the log link; the curvature is the observed one."""

    name: str = "gamma"
    dispersion: str | None = "shape"

    def log_prob(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Tensor:
        """The log-likelihood, log p(y | η, α)."""
        logs = torch.log(y)
        u = logs - eta
        excess = torch.expm1(u) - u
        return _constant(logs, log_dispersion) - torch.exp(log_dispersion) * excess

    def slopes(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value log p, ∂/∂η, −∂²/∂η²."""
        logs = torch.log(y)
        u = logs - eta
        shape = torch.exp(log_dispersion)
        slope = shape * torch.expm1(u)
        value = _constant(logs, log_dispersion) - (slope - shape * u)
        return value, slope, slope + shape

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """∂ log p/∂ log α."""
        u = torch.log(y) - eta
        shape = torch.exp(log_dispersion)
        return shape * gap(shape) - shape * (torch.expm1(u) - u)

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """e^η."""
        return torch.exp(eta)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """μ times a gamma variable with mean 1."""
        shape = torch.exp(log_dispersion).expand_as(eta)
        return torch.exp(eta) * torch._standard_gamma(shape, generator=generator) / shape

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Refuse what is not positive, and a constant response, for which α would be ∞."""
        check_single(self.name, trials)
        check_response(self.name, y, (y > 0.0) & y.isfinite(), "positive", "use 'gaussian'")
        if bool((y == y[0]).all()):
            raise ValueError(f"a gamma response must vary, got {float(y[0])!r} in all rows")

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """The value log y."""
        return torch.log(y)


def _constant(logs: Tensor, log_shape: Tensor) -> Tensor:
    """½ log α − ½ log 2π − R(α) − log y; η is not in it."""
    return 0.5 * log_shape - HALF_LOG_2PI - remainder(torch.exp(log_shape)) - logs
