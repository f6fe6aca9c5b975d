"""Counts with a variance above their mean: var y = μ + μ²/r, with log μ = η and r = `size`.

With d = η − log r, and R and G of `stirling.py`,

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

from mlmcgrad.mixed.families.base import check_response, check_single, whole
from mlmcgrad.mixed.families.stirling import gap, remainder

_LINEAR = 40.0  # beyond it log(1 + e^x) is x in double precision


@final
@dataclass(frozen=True)
class NegativeBinomial:
    """Overdispersed counts with the log link; the curvature is the observed one."""

    name: str = "negative_binomial"
    dispersion: str | None = "size"

    def log_prob(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Tensor:
        """The log-likelihood, log p(y | η, r)."""
        soft = functional.softplus(eta - log_dispersion, threshold=_LINEAR)
        total = y + torch.exp(log_dispersion)
        return torch.addcmul(_constant(y, log_dispersion), y, eta) - total * soft

    def slopes(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value log p, ∂/∂η, −∂²/∂η²."""
        d = eta - log_dispersion
        total = y + torch.exp(log_dispersion)
        pulled = total * torch.sigmoid(d)
        value = torch.addcmul(_constant(y, log_dispersion), y, eta) - total * functional.softplus(
            d, threshold=_LINEAR
        )
        return value, y - pulled, pulled * torch.sigmoid(-d)

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """∂ log p/∂ log r."""
        d = eta - log_dispersion
        r = torch.exp(log_dispersion)
        total = y + r
        fixed = r * (torch.log1p(y / r) - gap(total) + gap(r)) - y
        return fixed - r * functional.softplus(d, threshold=_LINEAR) + total * torch.sigmoid(d)

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """e^η."""
        return torch.exp(eta)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """A Poisson count whose mean is μ times a gamma variable with mean 1 and shape r."""
        size = torch.exp(log_dispersion).expand_as(eta)
        factor = torch._standard_gamma(size, generator=generator) / size
        return torch.poisson(torch.exp(eta) * factor, generator=generator)

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Refuse what is not a count."""
        check_single(self.name, trials)
        remedy = "'gamma' is for other positive numbers, 'gaussian' for all"
        check_response(self.name, y, whole(y), "a whole number ≥ 0", remedy)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """log(y + ½)."""
        return torch.log(y + 0.5)


def _constant(y: Tensor, log_size: Tensor) -> Tensor:
    """The part without η, log Γ(y + r) − log Γ(r) − y log r − log y!."""
    r = torch.exp(log_size)
    total = y + r
    ratio = (total - 0.5) * torch.log1p(y / r) - y + remainder(total) - remainder(r)
    return ratio - torch.lgamma(y + 1.0)
