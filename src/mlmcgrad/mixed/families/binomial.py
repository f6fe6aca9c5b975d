"""Binary responses, and successes among trials.

Bernoulli: p(y) = p^y (1 − p)^{1−y} for y = 0, 1.
Binomial: p(y) = C(n, y) p^y (1 − p)^{n−y} for y = 0 … n, with n = `trials`.

In both p = F(η), where F is the inverse of the link:

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
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from mlmcgrad.mixed.families.base import NoDispersion, Slopes, check_response, whole

_LARGEST = 700.0
_LINEAR = 40.0  # above it log(1 + e^x) is x in double precision


@runtime_checkable
class Link(Protocol):
    """The link of a probability."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    def one_slopes(self, eta: Tensor, y: Tensor) -> Slopes:
        """Return the log-likelihood of one trial, y = 0 or 1, with ∂/∂η and −∂²/∂η²."""

    def many_slopes(self, eta: Tensor, y: Tensor, trials: Tensor) -> Slopes:
        """Return the same for y successes, without the binomial coefficient."""

    def probability(self, eta: Tensor) -> Tensor:
        """Return F(η)."""

    def predictor(self, probability: Tensor) -> Tensor:
        """Return the η with F(η) = probability, for probabilities in (0, 1)."""


@final
@dataclass(frozen=True)
class Logit:
    """p = 1/(1 + e^{−η})."""

    name: str = "logit"

    def one_slopes(self, eta: Tensor, y: Tensor) -> Slopes:
        """Return −log(1 + e^{−sη}), s σ(−sη), σ(η) σ(−η)."""
        against = 1.0 - 2.0 * y  # −s
        x = against * eta
        other = torch.sigmoid(x)  # probability of the other outcome
        value = -functional.softplus(x, threshold=_LINEAR)
        return value, -against * other, torch.addcmul(other, other, other, value=-1.0)

    def many_slopes(self, eta: Tensor, y: Tensor, trials: Tensor) -> Slopes:
        """Return −y log(1 + e^{−η}) − (n − y) log(1 + e^η), y − np and np(1 − p)."""
        # y η − n log(1 + e^η) is shorter, and loses all digits where a probability is near 1.
        success = y * functional.softplus(-eta, threshold=_LINEAR)
        value = torch.addcmul(-success, y - trials, functional.softplus(eta, threshold=_LINEAR))
        expected = trials * torch.sigmoid(eta)
        return value, y - expected, expected * torch.sigmoid(-eta)

    def probability(self, eta: Tensor) -> Tensor:
        """Return σ(η)."""
        return torch.sigmoid(eta)

    def predictor(self, probability: Tensor) -> Tensor:
        """Return the log-odds, log p − log(1 − p)."""
        return torch.logit(probability)


@final
@dataclass(frozen=True)
class Probit:
    """p = Φ(η)."""

    name: str = "probit"

    def one_slopes(self, eta: Tensor, y: Tensor) -> Slopes:
        """Return log Φ(sη), s h(sη), h(sη) (h(sη) + sη)."""
        sign = 2.0 * y - 1.0
        x = sign * eta
        h = _hazard(x)
        return torch.special.log_ndtr(x), sign * h, h * (h + x)

    def many_slopes(self, eta: Tensor, y: Tensor, trials: Tensor) -> Slopes:
        """Return y log Φ(η) + (n − y) log Φ(−η), y a − (n − y) b and −y a' + (n − y) b'."""
        failures = trials - y
        success = y * torch.special.log_ndtr(eta)
        value = torch.addcmul(success, failures, torch.special.log_ndtr(-eta))
        a, b = _hazard(eta), _hazard(-eta)
        curvature = y * a * (a + eta) + failures * b * (b - eta)
        return value, y * a - failures * b, curvature

    def probability(self, eta: Tensor) -> Tensor:
        """Return Φ(η)."""
        return torch.special.ndtr(eta)

    def predictor(self, probability: Tensor) -> Tensor:
        """Return Φ^{−1}(p)."""
        return torch.special.ndtri(probability)


@final
@dataclass(frozen=True)
class Cloglog:
    """p = 1 − exp(−e^η), the probability of at least one event of a Poisson law."""

    name: str = "cloglog"

    def one_slopes(self, eta: Tensor, y: Tensor) -> Slopes:
        """Return `many_slopes` with one trial."""
        return self.many_slopes(eta, y, torch.ones_like(y))

    def many_slopes(self, eta: Tensor, y: Tensor, trials: Tensor) -> Slopes:
        """Return y log(1 − e^{−t}) − (n − y) t, y a − (n − y) t and y a (a + t − 1) + (n − y) t."""
        # Beyond ±700 t is 0 or infinite in double precision, and 0/0 or 0 · ∞ would follow.
        t = torch.exp(eta.clamp(-_LARGEST, _LARGEST))
        a = t / torch.expm1(t)
        failed = (trials - y) * t
        log_success = torch.where(eta < -_LARGEST, eta, torch.log(-torch.expm1(-t)))
        value = torch.addcmul(-failed, y, log_success)
        gained = y * a
        return value, gained - failed, torch.addcmul(failed, gained, a + t - 1.0)

    def probability(self, eta: Tensor) -> Tensor:
        """Return 1 − exp(−e^η)."""
        return -torch.expm1(-torch.exp(eta))

    def predictor(self, probability: Tensor) -> Tensor:
        """Return log(−log(1 − p))."""
        return torch.log(-torch.log1p(-probability))


@dataclass(frozen=True)
class Binary(NoDispersion):
    """Trials that succeed with the probability F(η).

    Args:
        link: the link of that probability; logit by default.
    """

    link: Link = field(default_factory=Logit)

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return F(η)."""
        return self.link.probability(eta)

    def variance(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return the variance of one trial, p(1 − p)."""
        p = self.link.probability(eta)
        return p * (1.0 - p)


@final
@dataclass(frozen=True)
class Bernoulli(Binary):
    """One trial per row; the curvature is the observed one."""

    name: str = "bernoulli"
    dispersion: str | None = None

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return log p, ∂/∂η and −∂²/∂η²."""
        return self.link.one_slopes(eta, y)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw 0 or 1."""
        return torch.bernoulli(self.link.probability(eta), generator=generator)

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Raise if a response is not 0 or 1."""
        remedy = "write y | trials(n) for binomial counts, y['level'] for one level of y"
        check_response(self.name, y, trials, (y == 0.0) | (y == 1.0), "0 or 1", remedy)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """Return F^{−1}((y + ½)/2)."""
        return self.link.predictor((y + 0.5) / 2.0)


@final
@dataclass(frozen=True)
class Binomial(Binary):
    """Successes among the trials of a row; the curvature is the observed one."""

    name: str = "binomial"
    dispersion: str | None = None

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return log p, ∂/∂η and −∂²/∂η²."""
        value, slope, curvature = self.link.many_slopes(eta, y, trials)
        return value + _log_choose(trials, y), slope, curvature

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw from 0 … n."""
        probability = self.link.probability(eta)
        return torch.binomial(trials.expand_as(probability), probability, generator=generator)

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Raise if a response is not a whole number from 0 to n."""
        right = whole(trials) & (trials >= 1.0)
        if not bool(right.all()):
            got = float(trials[~right][0])
            raise ValueError(f"trials must be whole numbers ≥ 1, got {got!r}; correct them")
        what = "a whole number from 0 to the number of trials"
        remedy = "write y | trials(n), with y successes among n"
        check_response(self.name, y, None, whole(y) & (y <= trials), what, remedy)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """Return F^{−1}((y + ½)/(n + 1))."""
        return self.link.predictor((y + 0.5) / (trials + 1.0))


def _log_choose(n: Tensor, y: Tensor) -> Tensor:
    """Return log C(n, y)."""
    return torch.lgamma(n + 1.0) - torch.lgamma(y + 1.0) - torch.lgamma(n - y + 1.0)


def _hazard(x: Tensor) -> Tensor:
    """Return φ(x)/Φ(x), exact to rounding in both tails."""
    return math.sqrt(2.0 / math.pi) / torch.special.erfcx(x * -math.sqrt(0.5))
