"""Binary responses, and successes among trials.

Bernoulli: p(y) = p^y (1 − p)^{1−y} for y = 0, 1.
Binomial: p(y) = C(n, y) p^y (1 − p)^{n−y} for y = 0 … n, with n = `trials`.
In both p = F(η) with a link F, see `links.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from mlmcgrad.mixed.families.base import check_response, check_single, whole
from mlmcgrad.mixed.families.links import Link, Logit


@final
@dataclass(frozen=True)
class Bernoulli:
    """One trial a row; the curvature is the observed one.

    Args:
        link: of the probability of y = 1.
    """

    link: Link = field(default_factory=Logit)
    name: str = "bernoulli"
    dispersion: str | None = None

    def log_prob(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Tensor:
        """The log-likelihood, log p(y | η)."""
        return self.link.one(eta, y)

    def slopes(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value log p, ∂/∂η, −∂²/∂η²."""
        return self.link.one_slopes(eta, y)

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Zeros."""
        return torch.zeros_like(eta)

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """P(y = 1)."""
        return self.link.probability(eta)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """0 or 1."""
        return torch.bernoulli(self.link.probability(eta), generator=generator)

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Refuse what is not 0 or 1."""
        check_single(self.name, trials)
        remedy = "y | trials(n) is binomial, and y['level'] is whether y has a level"
        check_response(self.name, y, (y == 0.0) | (y == 1.0), "0 or 1", remedy)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """F^{−1}((y + ½)/2)."""
        return self.link.predictor((y + 0.5) / 2.0)


@final
@dataclass(frozen=True)
class Binomial:
    """Successes among the trials of a row; the curvature is the observed one.

    Args:
        link: of the probability of a success.
    """

    link: Link = field(default_factory=Logit)
    name: str = "binomial"
    dispersion: str | None = None

    def log_prob(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Tensor:
        """The log-likelihood, log p(y | η)."""
        return self.link.many(eta, y, trials) + _log_choose(trials, y)

    def slopes(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value log p, ∂/∂η, −∂²/∂η²."""
        value, slope, curvature = self.link.many_slopes(eta, y, trials)
        return value + _log_choose(trials, y), slope, curvature

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Zeros."""
        return torch.zeros_like(eta)

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Probability of a success."""
        return self.link.probability(eta)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """0 … n."""
        probability = self.link.probability(eta)
        return torch.binomial(trials.expand_as(probability), probability, generator=generator)

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Refuse what is not a whole number from 0 to n."""
        right = whole(trials) & (trials >= 1.0)
        if not bool(right.all()):
            row = int(right.int().argmin())
            raise ValueError(f"trials must be whole numbers ≥ 1, got {float(trials[row])!r}")
        what = "a whole number from 0 to the number of trials"
        remedy = "write y | trials(n), with y successes among n"
        check_response(self.name, y, whole(y) & (y <= trials), what, remedy)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """F^{−1}((y + ½)/(n + 1))."""
        return self.link.predictor((y + 0.5) / (trials + 1.0))


def _log_choose(n: Tensor, y: Tensor) -> Tensor:
    """The binomial coefficient, log C(n, y)."""
    return torch.lgamma(n + 1.0) - torch.lgamma(y + 1.0) - torch.lgamma(n - y + 1.0)
