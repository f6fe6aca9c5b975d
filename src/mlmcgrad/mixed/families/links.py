"""Links of a probability: p = F(η).

    log p(y | η) = y log F(η) + (n − y) log(1 − F(η))        (without the binomial coefficient)
    ∂/∂η = y a − (n − y) b,      a = F'/F,   b = F'/(1 − F)
    −∂²/∂η² = −y a' + (n − y) b'

| link | F | a | b | −a' | b' |
|---|---|---|---|---|---|
| logit | σ(η) | σ(−η) | σ(η) | σ(η) σ(−η) | the same |
| probit | Φ(η) | h(η) | h(−η) | h(η) (h(η) + η) | h(−η) (h(−η) − η) |
| cloglog | 1 − e^{−t} | t/(e^t − 1) | t | a (a + t − 1) | t |

with h(η) = φ(η)/Φ(η) = √(2/π)/erfcx(−η/√2) and t = e^η. All three are log-concave: the curvature is
the observed one. With s = 2y − 1 one trial is log F(sη) for logit and probit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

# Beyond it log(1 + e^x) is x in double precision.
_LINEAR = 40.0


@runtime_checkable
class Link(Protocol):
    """What a binomial family needs of a link."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def one(self, eta: Tensor, y: Tensor) -> Tensor:
        """The log-likelihood of one trial, y = 0 or 1."""

    def one_slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Its value, ∂/∂η and −∂²/∂η²."""

    def many(self, eta: Tensor, y: Tensor, trials: Tensor) -> Tensor:
        """The log-likelihood of y successes, without the binomial coefficient."""

    def many_slopes(self, eta: Tensor, y: Tensor, trials: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Its value, ∂/∂η and −∂²/∂η²."""

    def probability(self, eta: Tensor) -> Tensor:
        """F(η)."""

    def predictor(self, probability: Tensor) -> Tensor:
        """The η with F(η) = probability, for probabilities in (0, 1)."""


@final
@dataclass(frozen=True)
class Logit:
    """p = 1/(1 + e^{−η})."""

    name: str = "logit"

    def one(self, eta: Tensor, y: Tensor) -> Tensor:
        """−log(1 + e^{−sη})."""
        return -functional.softplus((1.0 - 2.0 * y) * eta, threshold=_LINEAR)

    def one_slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, s σ(−sη), σ(η) σ(−η)."""
        against = 1.0 - 2.0 * y  # −s
        x = against * eta
        other = torch.sigmoid(x)  # probability of the other outcome
        value = -functional.softplus(x, threshold=_LINEAR)
        return value, -against * other, torch.addcmul(other, other, other, value=-1.0)

    def many(self, eta: Tensor, y: Tensor, trials: Tensor) -> Tensor:
        """−y log(1 + e^{−η}) − (n − y) log(1 + e^η)."""
        # y η − n log(1 + e^η) is shorter, and loses all digits where a probability is near 1.
        success = y * functional.softplus(-eta, threshold=_LINEAR)
        return torch.addcmul(-success, y - trials, functional.softplus(eta, threshold=_LINEAR))

    def many_slopes(self, eta: Tensor, y: Tensor, trials: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, y − np, np(1 − p)."""
        p = torch.sigmoid(eta)
        expected = trials * p
        return self.many(eta, y, trials), y - expected, expected * torch.sigmoid(-eta)

    def probability(self, eta: Tensor) -> Tensor:
        """σ(η)."""
        return torch.sigmoid(eta)

    def predictor(self, probability: Tensor) -> Tensor:
        """The log-odds, log p − log(1 − p)."""
        return torch.logit(probability)


@final
@dataclass(frozen=True)
class Probit:
    """p = Φ(η)."""

    name: str = "probit"

    def one(self, eta: Tensor, y: Tensor) -> Tensor:
        """The value log Φ(sη)."""
        return torch.special.log_ndtr((2.0 * y - 1.0) * eta)

    def one_slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, s h(sη), h(sη) (h(sη) + sη)."""
        sign = 2.0 * y - 1.0
        x = sign * eta
        h = _hazard(x)
        return torch.special.log_ndtr(x), sign * h, h * (h + x)

    def many(self, eta: Tensor, y: Tensor, trials: Tensor) -> Tensor:
        """The value y log Φ(η) + (n − y) log Φ(−η)."""
        success = y * torch.special.log_ndtr(eta)
        return torch.addcmul(success, trials - y, torch.special.log_ndtr(-eta))

    def many_slopes(self, eta: Tensor, y: Tensor, trials: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, y a − (n − y) b, −y a' + (n − y) b'."""
        failures = trials - y
        a, b = _hazard(eta), _hazard(-eta)
        curvature = y * a * (a + eta) + failures * b * (b - eta)
        return self.many(eta, y, trials), y * a - failures * b, curvature

    def probability(self, eta: Tensor) -> Tensor:
        """Φ(η)."""
        return torch.special.ndtr(eta)

    def predictor(self, probability: Tensor) -> Tensor:
        """Φ^{−1}(p)."""
        return torch.special.ndtri(probability)


@final
@dataclass(frozen=True)
class Cloglog:
    """p = 1 − exp(−e^η), the probability of at least one event of a Poisson law."""

    name: str = "cloglog"

    def one(self, eta: Tensor, y: Tensor) -> Tensor:
        """The value y log(1 − e^{−t}) − (1 − y) t."""
        return self.many(eta, y, torch.ones_like(y))

    def one_slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, y a − (1 − y) t, y a (a + t − 1) + (1 − y) t."""
        return self.many_slopes(eta, y, torch.ones_like(y))

    def many(self, eta: Tensor, y: Tensor, trials: Tensor) -> Tensor:
        """The value y log(1 − e^{−t}) − (n − y) t."""
        t = torch.exp(eta)
        return torch.addcmul((y - trials) * t, y, torch.log(-torch.expm1(-t)))

    def many_slopes(self, eta: Tensor, y: Tensor, trials: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, y a − (n − y) t, y a (a + t − 1) + (n − y) t."""
        t = torch.exp(eta)
        a = t / torch.expm1(t)
        failed = (trials - y) * t
        value = torch.addcmul(-failed, y, torch.log(-torch.expm1(-t)))
        gained = y * a
        return value, gained - failed, torch.addcmul(failed, gained, a + t - 1.0)

    def probability(self, eta: Tensor) -> Tensor:
        """1 − exp(−e^η)."""
        return -torch.expm1(-torch.exp(eta))

    def predictor(self, probability: Tensor) -> Tensor:
        """The value log(−log(1 − p))."""
        return torch.log(-torch.log1p(-probability))


def _hazard(x: Tensor) -> Tensor:
    """φ(x)/Φ(x), exact to rounding in both tails."""
    return math.sqrt(2.0 / math.pi) / torch.special.erfcx(x * -math.sqrt(0.5))
