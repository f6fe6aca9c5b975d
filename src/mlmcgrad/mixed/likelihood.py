"""What the search needs of a likelihood: independent, unbiased estimates of its score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mlmcgrad.mixed.parameters import Layout


@dataclass(frozen=True)
class LogLikelihood:
    """An estimate of the log-likelihood, in independent parts."""

    value: Tensor  # (parts,)
    deviation: Tensor  # (parts, blocks): of the blocks that a part is the mean of, relative to it

    @property
    def total(self) -> float:
        """The log-likelihood."""
        return float(self.value.sum())

    @property
    def error(self) -> float:
        """Its Monte Carlo standard error."""
        return error_of(self.deviation)

    def minus(self, other: LogLikelihood) -> tuple[float, float]:
        """The difference and its error, small where both have the same random numbers."""
        if self.deviation.shape == other.deviation.shape:
            error = error_of(self.deviation - other.deviation)
        else:
            error = (self.error**2 + other.error**2) ** 0.5
        return self.total - other.total, error


def error_of(deviation: Tensor) -> float:
    """The standard error of the sum over parts of means over blocks."""
    return float((deviation.var(1).sum() / deviation.shape[1]).sqrt())


class Likelihood(Protocol):
    """The likelihood of a model as a function of θ; all randomness is its own."""

    @property
    def layout(self) -> Layout:
        """What θ holds."""

    def score(self, theta: Tensor) -> Tensor:
        """An unbiased estimate of the score, (θ,); calls are independent of each other."""

    def scores(self, theta: Tensor, count: int) -> Tensor:
        """So many of them, independent of each other, (count, θ)."""

    def adaptive(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """A score, of a part of the data if there are many, and a matrix A^{-1} for its step.

        The matrix is at least the covariance of the score, up to its noise.
        """

    def information(self, theta: Tensor) -> Tensor:
        """The observed information, (θ, θ), symmetric; of negligible Monte Carlo error."""

    def log_likelihood(self, theta: Tensor, seed: int | None = None) -> LogLikelihood:
        """An estimate of the log-likelihood.

        Args:
            theta: θ.
            seed: of its random numbers, so that two models can have the same ones.
        """

    def effects(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each factor, mean and covariance of the random effects b given the data.

        (groups, q) and (groups, q, q).
        """

    def length(self, step: Tensor) -> float:
        """How far a step of θ moves the linear predictor."""
