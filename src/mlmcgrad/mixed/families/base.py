"""The interface of a family, the law of a response y given its linear predictor η.

Tensors broadcast: η is (draws, rows) where y and trials are (rows,); the log dispersion is a scalar
or (draws, 1). All are float64. log p is normalised, constants included.

Differences of log Γ at large arguments lose their digits. `remainder` and `gap` keep them:

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

# log p, its slope and its curvature in η.
Slopes: TypeAlias = tuple[Tensor, Tensor, Tensor]

_LARGE = 100.0
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@runtime_checkable
class Family(Protocol):
    """The law of y given η; any class with these members is a family."""

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
    """A family in which each row counts as often as its weight says, which replaces `trials`.

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
