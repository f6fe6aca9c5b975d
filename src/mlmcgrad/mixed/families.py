"""Families of responses, by name or as objects.

| name | response | links | dispersion |
|---|---|---|---|
| bernoulli | 0 or 1 | logit, probit, cloglog | |
| binomial | successes among trials | logit, probit, cloglog | |
| poisson | counts | log | |
| negative_binomial | counts, var = μ + μ²/size | log | size |
| gaussian | real numbers | identity | sigma |
| gamma | positive numbers, var = μ²/shape | log | shape |

Any object with the members of `Family` is a family: the distribution of a response y given its
linear predictor η. Tensors broadcast: η is (draws, rows) where y and trials are (rows,); the log
dispersion is a scalar or (draws, 1). All are float64. log p is normalised, constants included.

Differences of log Γ at large arguments lose accuracy. `remainder` and `gap` preserve it:

    log Γ(x) = (x − ½) log x − x + ½ log 2π + R(x),      R(x) = 1/(12x) − 1/(360x³) + …
    ψ(x) = log x − G(x),                                 G(x) = 1/(2x) + 1/(12x²) − 1/(120x⁴) + …

Above 100 the series are exact to rounding; below, R and G are computed from log Γ and ψ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

# log p, its slope and its curvature in η.
Slopes: TypeAlias = tuple[Tensor, Tensor, Tensor]

_LARGE = 100.0
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LARGEST = 700.0
_LINEAR = 40.0  # above it log(1 + e^x) is x in double precision


@runtime_checkable
class Family(Protocol):
    """The distribution of y given η; any class with these members is a family."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def dispersion(self) -> str | None:
        """Name of its second parameter, estimated on the log scale; None if there is none."""

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return log p(y | η), ∂ log p/∂η, and a curvature ≥ 0, elementwise.

        The curvature is −∂² log p/∂η², or its mean over y where that may be negative. It only
        shapes Newton steps and proposals, and need not be exact.
        """

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Return ∂ log p/∂ log dispersion; zeros if there is no dispersion."""

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return the mean of y, for binomial responses that of one trial."""

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw y for each η."""

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Raise if a response is impossible in this family; (rows,) each."""

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """Return an η near which each y is likely, (rows,), for a first least-squares fit."""


@final
@dataclass(frozen=True)
class Weighted:
    """A family with prior weights: each row counts `weight` times. The weights replace `trials`.

    Args:
        family: the family of a row of weight 1; it has no trials.
    """

    family: Family

    @property
    def name(self) -> str:
        """The name of the family."""
        return self.family.name

    @property
    def dispersion(self) -> str | None:
        """The dispersion of the family."""
        return self.family.dispersion

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return the weight times log p, its slope and its curvature."""
        value, slope, curvature = self.family.slopes(
            eta, y, torch.ones_like(trials), log_dispersion
        )
        return trials * value, trials * slope, trials * curvature

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Return the weight times ∂ log p/∂ log dispersion."""
        one = torch.ones_like(trials)
        return trials * self.family.dispersion_slope(eta, y, one, log_dispersion)

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return the mean of y."""
        return self.family.mean(eta, log_dispersion)

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Raise: rows that count several times have no law."""
        raise ValueError(
            "a fit with weights cannot simulate responses: rows that count several times have no "
            "law; repeat the rows instead"
        )

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Raise if a response is impossible in the family."""
        self.family.check(y, torch.ones_like(trials))

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """Return an η near which each y is likely."""
        return self.family.start(y, torch.ones_like(trials))


class NoDispersion:
    """A family without a second parameter."""

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(eta)


class LogLink:
    """A family whose mean is e^η."""

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return e^η."""
        return torch.exp(eta)


def check_response(
    name: str, y: Tensor, trials: Tensor | None, right: Tensor, what: str, remedy: str
) -> None:
    """Raise for the first response that is not `right`, and for trials unless they are None."""
    if trials is not None and bool((trials != 1.0).any()):
        raise ValueError(
            f"a {name} response has no trials, got {float(trials[trials != 1.0][0])!r} of "
            "them; use the family 'binomial', or leave out trials in the formula"
        )
    if not bool(right.all()):
        row = int(right.int().argmin())
        raise ValueError(
            f"a {name} response must be {what}, got {float(y[row])!r} in row {row} (counted from "
            f"0, without rows that have missing values); {remedy}"
        )


def whole(y: Tensor) -> Tensor:
    """Return whether each response is 0, 1, 2, …."""
    return (y >= 0.0) & (y == y.floor()) & y.isfinite()


def remainder(x: Tensor) -> Tensor:
    """Return R(x) for x > 0."""
    inverse = 1.0 / x
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    direct = torch.lgamma(x) - ((x - 0.5) * torch.log(x) - x + HALF_LOG_2PI)
    return torch.where(x > _LARGE, series, direct)


def gap(x: Tensor) -> Tensor:
    """Return G(x) for x > 0."""
    inverse = 1.0 / x
    square = inverse * inverse
    series = 0.5 * inverse + square * (1 / 12 - square * (1 / 120 - square * (1 / 252)))
    return torch.where(x > _LARGE, series, torch.log(x) - torch.digamma(x))


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
    """p = 1 − exp(−e^η), the probability of at least one event of a Poisson distribution."""

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


Link: TypeAlias = Logit | Probit | Cloglog


@dataclass(frozen=True)
class Binary(NoDispersion):
    """Trials that succeed with the probability p = F(η), where F is the inverse of the link.

    Up to the binomial coefficient, y successes in n trials have the log-probability

        log p(y | η) = y log F(η) + (n − y) log(1 − F(η))
        ∂/∂η = y a − (n − y) b,      a = F'/F,   b = F'/(1 − F)
        −∂²/∂η² = −y a' + (n − y) b'

    | link | F | a | b | −a' | b' |
    |---|---|---|---|---|---|
    | logit | σ(η) | σ(−η) | σ(η) | σ(η) σ(−η) | the same |
    | probit | Φ(η) | h(η) | h(−η) | h(η) (h(η) + η) | h(−η) (h(−η) − η) |
    | cloglog | 1 − e^{−t} | t/(e^t − 1) | t | a (a + t − 1) | t |

    with h(η) = φ(η)/Φ(η) = √(2/π)/erfcx(−η/√2) and t = e^η. All three are log-concave: the
    curvature is the observed one. With s = 2y − 1 one trial is log F(sη) for logit and probit.

    Args:
        link: the link of that probability; logit by default.
    """

    link: Link = Logit()

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return F(η)."""
        return self.link.probability(eta)

    def variance(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Return the variance of one trial, p(1 − p)."""
        p = self.link.probability(eta)
        return p * (1.0 - p)

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """Return F^{−1}((y + ½)/(n + 1))."""
        return self.link.predictor((y + 0.5) / (trials + 1.0))


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


@final
@dataclass(frozen=True)
class Binomial(Binary):
    """Successes among the trials of a row; the curvature is the observed one."""

    name: str = "binomial"
    dispersion: str | None = None

    def slopes(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Slopes:
        """Return log p, ∂/∂η and −∂²/∂η²."""
        value, slope, curvature = self.link.many_slopes(eta, y, trials)
        ways = torch.lgamma(trials + 1.0) - torch.lgamma(y + 1.0) - torch.lgamma(trials - y + 1.0)
        return value + ways, slope, curvature

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


def _hazard(x: Tensor) -> Tensor:
    """Return φ(x)/Φ(x), exact to rounding in both tails."""
    return math.sqrt(2.0 / math.pi) / torch.special.erfcx(x * -math.sqrt(0.5))


@final
@dataclass(frozen=True)
class Gaussian:
    """Normal responses with the identity link; the curvature is the observed one, σ^{−2}.

    log p = −½ z² − log σ − ½ log 2π with z = (y − η)/σ and σ = `sigma`.
    """

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
    """Positive responses with the log link; the curvature is the observed one.

    The coefficient of variation is constant: with the mean μ, log μ = η, α = `shape`, the rate α/μ
    and u = log y − η,

        log p = α log(α/μ) + (α − 1) log y − α y/μ − log Γ(α)
              = −α (e^u − 1 − u) + ½ log α − ½ log 2π − R(α) − log y
        ∂/∂η = α (e^u − 1),      −∂²/∂η² = α e^u,      ∂/∂ log α = −α (e^u − 1 − u) + α G(α)
    """

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
    """Counts with the log link; the curvature is the observed one, e^η.

    p(y) = μ^y e^{−μ}/y!, so log p = y η − e^η − log y!. An exposure is an offset:
    y ~ x + offset(log(exposure)) + (1 | g).
    """

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
    """Overdispersed counts with the log link; the curvature is the observed one.

    var y = μ + μ²/r with r = `size`. With d = η − log r,

        log p = log Γ(y + r) − log Γ(r) − log y! + y log(μ/(μ + r)) + r log(r/(μ + r))
              = [(r + y − ½) log(1 + y/r) − y + R(r + y) − R(r)]
                − log y! + y η − (y + r) log(1 + e^d)
        ∂/∂η = y − (y + r) σ(d),      −∂²/∂η² = (y + r) σ(d) σ(−d)
        ∂/∂ log r = r [log(1 + y/r) − G(r + y) + G(r) − log(1 + e^d)] + (y + r) σ(d) − y

    The limit r → ∞ is the Poisson distribution, where these formulas remain accurate.
    """

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


_PROBABILITY: dict[str, Link] = {"logit": Logit(), "probit": Probit(), "cloglog": Cloglog()}
_FAMILIES: dict[str, dict[str, Family]] = {
    "bernoulli": {name: Bernoulli(link) for name, link in _PROBABILITY.items()},
    "binomial": {name: Binomial(link) for name, link in _PROBABILITY.items()},
    "poisson": {"log": Poisson()},
    "negative_binomial": {"log": NegativeBinomial()},
    "gaussian": {"identity": Gaussian()},
    "gamma": {"log": Gamma()},
}


def family(which: str | Family, link: str | None = None) -> Family:
    """Return the family with a name.

    Args:
        which: the name; an object with the members of `Family` is returned as it is.
        link: the name of the link; by default the first one of the family.

    Example:
        >>> family("bernoulli", "probit")
        Bernoulli(link=Probit(name='probit'), name='bernoulli', dispersion=None)
    """
    if isinstance(which, Family) and not isinstance(which, type):
        if link is not None:
            raise ValueError(f"link must be None for a family that is an object, got {link!r}")
        return which
    if not isinstance(which, str) or which not in _FAMILIES:
        raise ValueError(
            f"family must be one of {', '.join(_FAMILIES)}, or an object with the members of "
            f"mlmcgrad.mixed.Family, got {which!r}"
        )
    links = _FAMILIES[which]
    name = next(iter(links)) if link is None else link
    if name not in links:
        raise ValueError(
            f"link of the family {which} must be one of {', '.join(links)}, got {link!r}"
        )
    return links[name]
