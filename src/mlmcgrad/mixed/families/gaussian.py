"""Real numbers: y ~ N(η, σ²) with σ = `sigma`, log p = −½ z² − log σ − ½ log 2π, z = (y − η)/σ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mlmcgrad.mixed.families.base import check_response, check_single
from mlmcgrad.mixed.families.stirling import HALF_LOG_2PI


@final
@dataclass(frozen=True)
class Gaussian:
    """Normal responses with the identity link; the curvature is the observed one, σ^{−2}."""

    name: str = "gaussian"
    dispersion: str | None = "sigma"

    def log_prob(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Tensor:
        """−½ z² − log σ − ½ log 2π."""
        z = (y - eta) * torch.exp(-log_dispersion)
        return -0.5 * z * z - (log_dispersion + HALF_LOG_2PI)

    def slopes(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value log p, z/σ, σ^{−2}."""
        precision = torch.exp(-2.0 * log_dispersion)
        error = y - eta
        slope = error * precision
        value = -0.5 * error * slope - (log_dispersion + HALF_LOG_2PI)
        return value, slope, precision.expand_as(value)

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """z² − 1."""
        z = (y - eta) * torch.exp(-log_dispersion)
        return z * z - 1.0

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """η."""
        return eta

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """η + σ N(0, 1)."""
        noise = torch.empty_like(eta).normal_(generator=generator)
        return eta + torch.exp(log_dispersion) * noise

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Refuse what is not finite, and a constant response, for which σ would be 0."""
        check_single(self.name, trials)
        check_response(self.name, y, y.isfinite(), "finite", "leave out the row")
        if bool((y == y[0]).all()):
            raise ValueError(f"a gaussian response must vary, got {float(y[0])!r} in all rows")

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """The response itself."""
        return y
