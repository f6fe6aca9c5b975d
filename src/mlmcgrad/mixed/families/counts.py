"""Counts, with log μ = η: Poisson, and negative binomial for a variance above the mean.

Poisson: p(y) = μ^y e^{−μ}/y!, so log p = y η − e^η − log y!. An exposure is an offset:
y ~ x + offset(log(exposure)) + (1 | g).

Negative binomial: var y = μ + μ²/r with r = `size`. With d = η − log r, and R and G as in
`base.py`,

    log p = log Γ(y + r) − log Γ(r) − log y! + y log(μ/(μ + r)) + r log(r/(μ + r))
          = [(r + y − ½) log(1 + y/r) − y + R(r + y) − R(r)] − log y! + y η − (y + r) log(1 + e^d)
    ∂/∂η = y − (y + r) σ(d),      −∂²/∂η² = (y + r) σ(d) σ(−d)
    ∂/∂ log r = r [log(1 + y/r) − G(r + y) + G(r) − log(1 + e^d)] + (y + r) σ(d) − y

r → ∞ is the Poisson law, where all of these keep their digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from mlmcgrad.mixed.families.base import (
    LogLink,
    NoDispersion,
    Slopes,
    check_response,
    gap,
    remainder,
    whole,
)

_LINEAR = 40.0  # above it log(1 + e^x) is x in double precision


class Counts(LogLink):
    """Responses 0, 1, 2, …."""

    name: str

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Raise if a response is not a count."""
        remedy = "use 'gamma' for other positive numbers, 'gaussian' for real ones"
        check_response(self.name, y, trials, whole(y), "a whole number ≥ 0", remedy)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """Return log(y + ½)."""
        return torch.log(y + 0.5)


@final
@dataclass(frozen=True)
class Poisson(Counts, NoDispersion):
    """Counts with the log link; the curvature is the observed one, e^η."""

    name: str = "poisson"
    dispersion: str | None = None

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return log p, y − e^η and e^η."""
        mean = torch.exp(eta)
        return torch.addcmul(-torch.lgamma(y + 1.0), y, eta) - mean, y - mean, mean

    def variance(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return e^η."""
        return torch.exp(eta)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw counts."""
        return torch.poisson(torch.exp(eta), generator=generator)


@final
@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """Overdispersed counts with the log link; the curvature is the observed one."""

    name: str = "negative_binomial"
    dispersion: str | None = "size"

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return log p, ∂/∂η and −∂²/∂η²."""
        d, r = eta - log_dispersion, torch.exp(log_dispersion)
        total = y + r
        pulled = total * torch.sigmoid(d)
        ratio = (total - 0.5) * torch.log1p(y / r) - y + remainder(total) - remainder(r)
        constant = ratio - torch.lgamma(y + 1.0)
        value = torch.addcmul(constant, y, eta) - total * functional.softplus(d, threshold=_LINEAR)
        return value, y - pulled, pulled * torch.sigmoid(-d)

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Return ∂ log p/∂ log r."""
        d, r = eta - log_dispersion, torch.exp(log_dispersion)
        total = y + r
        fixed = r * (torch.log1p(y / r) - gap(total) + gap(r)) - y
        return fixed - r * functional.softplus(d, threshold=_LINEAR) + total * torch.sigmoid(d)

    def variance(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return μ + μ²/r."""
        mean = torch.exp(eta)
        return mean + mean * torch.exp(eta - log_dispersion)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw a Poisson count whose mean is μ times a gamma variable with mean 1 and shape r."""
        size = torch.exp(log_dispersion).expand_as(eta)
        factor = torch._standard_gamma(size, generator=generator) / size
        return torch.poisson(torch.exp(eta) * factor, generator=generator)
