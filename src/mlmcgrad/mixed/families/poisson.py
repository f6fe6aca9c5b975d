"""Counts: p(y) = μ^y e^{−μ}/y! with log μ = η, so log p = y η − e^η − log y!.

An exposure is an offset: y ~ x + offset(log(exposure)) + (1 | g).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mlmcgrad.mixed.families.base import check_response, check_single, whole


@final
@dataclass(frozen=True)
class Poisson:
    """Counts with the log link; the curvature is the observed one, e^η."""

    name: str = "poisson"
    dispersion: str | None = None

    def log_prob(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Tensor:
        """The value y η − e^η − log y!."""
        return torch.addcmul(-torch.lgamma(y + 1.0), y, eta) - torch.exp(eta)

    def slopes(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value log p, y − e^η, e^η."""
        mean = torch.exp(eta)
        return torch.addcmul(-torch.lgamma(y + 1.0), y, eta) - mean, y - mean, mean

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Zeros."""
        return torch.zeros_like(eta)

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """e^η."""
        return torch.exp(eta)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """0, 1, 2, …."""
        return torch.poisson(torch.exp(eta), generator=generator)

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Refuse what is not a count."""
        check_single(self.name, trials)
        remedy = "'gamma' is for other positive numbers, 'gaussian' for all"
        check_response(self.name, y, whole(y), "a whole number ≥ 0", remedy)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """log(y + ½)."""
        return torch.log(y + 0.5)
