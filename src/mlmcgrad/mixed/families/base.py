"""What a model needs of a family: the law of a response y given its linear predictor η.

Tensors broadcast: η is (draws, rows) where y and trials are (rows,); the log dispersion is a scalar
or (draws, 1). All are float64. log p is normalised, constants included.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Family(Protocol):
    """Law of y given η; a class with these members is a family."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    @property
    def dispersion(self) -> str | None:
        """Name of its second parameter, which is estimated on the log scale; None if none."""

    def log_prob(self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor) -> Tensor:
        """The log-likelihood, log p(y | η), elementwise."""

    def slopes(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value log p, ∂ log p/∂η, and a curvature ≥ 0.

        The curvature is −∂² log p/∂η², or its mean over y where that may be negative; it shapes
        Newton steps and proposals only, and need not be exact.
        """

    def dispersion_slope(
        self, eta: Tensor, y: Tensor, trials: Tensor, log_dispersion: Tensor
    ) -> Tensor:
        """∂ log p/∂ log dispersion; zeros where there is no dispersion."""

    def mean(self, eta: Tensor, log_dispersion: Tensor) -> Tensor:
        """Mean of y (for binomial responses of one trial)."""

    def sample(
        self, eta: Tensor, trials: Tensor, log_dispersion: Tensor, generator: torch.Generator
    ) -> Tensor:
        """A draw of y for each η."""

    def check(self, y: Tensor, trials: Tensor) -> None:
        """Refuse responses that the family cannot give; (rows,) each."""

    def start(self, y: Tensor, trials: Tensor) -> Tensor:
        """About the η that fits each y alone, (rows,), for a first least-squares fit."""


def check_response(name: str, y: Tensor, right: Tensor, what: str, remedy: str) -> None:
    """Refuse the first y that is not right.

    Args:
        name: of the family.
        y: responses, (rows,).
        right: which are possible, (rows,) bool.
        what: what they must be.
        remedy: what to do otherwise.
    """
    if not bool(right.all()):
        row = int(right.int().argmin())
        raise ValueError(
            f"a {name} response must be {what}, got {float(y[row])!r} in row {row} (counted from "
            f"0, without rows that have missing values); {remedy}"
        )


def check_single(name: str, trials: Tensor) -> None:
    """Refuse numbers of trials that are not 1."""
    single = trials == 1.0
    if not bool(single.all()):
        raise ValueError(
            f"a {name} response has no trials, got {float(trials[single.int().argmin()])!r} of "
            "them; use the family 'binomial', or leave out trials in the formula"
        )


def whole(y: Tensor) -> Tensor:
    """Which responses are 0, 1, 2, …."""
    return (y >= 0.0) & (y == y.floor()) & y.isfinite()
