"""Stochastic maximum likelihood: scoring steps, then averaging, until the noise is small.

With S_n an unbiased estimate of the score at θ_{n−1} (`score.py`):

1. θ_n = θ_{n−1} + A_n S_n with A_n^{-1} = Σ_g s_g s_gᵀ, the outer products of the group scores (the
   adaptive matrix), until the score is no larger than its noise. Of many groups each step takes
   some.
2. θ_n = θ_{n−1} + n^{-0.7} I^{-1} S_n with I the observed information (`information.py`). The
   estimate is the average θ̄ of these iterates. With ε_n = S_n + I (θ_{n−1} − θ̄), the noise in S_n,
   and V its covariance, the covariance of θ̄ about the maximum is I^{-1} V I^{-1} / N. It ends when
   the root of each diagonal entry is below a part of the standard error.
3. The certificate: scores at θ̄ from new random numbers, M times; their mean S̄ says how far the
   maximum is from θ̄, I^{-1} S̄, with the covariance I^{-1} V I^{-1} (1/M + 1/N). As V is estimated
   from N + M scores, the test of 0 is Hotelling's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from scipy.special import fdtrc
from torch import Tensor

from mlmcgrad.hotelling import hotelling
from mlmcgrad.mixed.likelihood import Likelihood

_DECAY = 0.7
_FLATTEST = 1e-8  # of an eigenvalue of I over the largest
_FEWEST = 12  # iterations of an average
_CERTIFYING = 16  # scores of a certificate, at least
_FALSE_ALARM, _WIDEST = 1e-3, 0.2
_EARLY = 4  # iterations of an average that begins far from its end
_CALM = 2  # scoring steps in a row whose score is noise
_LONGEST_STEP = 1.5  # of a linear predictor, in one step
_MOST_SCORING = 40  # steps; groups that are all alike would never end them
_MOVED = 0.1  # standard errors between θ̄ and where I is from, beyond which both are made anew
_ROUNDING = 1e-3  # standard errors that are never called an error


@dataclass(frozen=True)
class State:
    """What is known so far."""

    iteration: int
    averaging: bool
    theta: Tensor  # θ̄, or θ before there is an average
    information: Tensor | None = None  # I; None before there is an average
    noise: Tensor | None = None  # I^{-1} V I^{-1}; None with too few iterations
    averaged: int = 0  # N
    definite: bool = True  # whether the information that was found is positive definite

    @property
    def standard_errors(self) -> Tensor:
        """Roots of the diagonal of I^{-1}."""
        assert self.information is not None
        return torch.linalg.inv(self.information).diagonal().sqrt()

    @property
    def monte_carlo_errors(self) -> Tensor:
        """Of θ̄; infinite while they are not known."""
        if self.noise is None:
            return torch.full_like(self.theta, torch.inf)
        return (self.noise.diagonal() / self.averaged).sqrt()

    @property
    def largest_noise(self) -> float:
        """The largest Monte Carlo error in standard errors; infinite while it is not known."""
        return float((self.monte_carlo_errors / self.standard_errors).max())


@dataclass(frozen=True)
class Certificate:
    """How far the maximum is from the estimate, by scores that had no part in it."""

    displacement: Tensor  # I^{-1} S̄ in standard errors, (θ,)
    error: Tensor  # its standard deviation if the estimate is right, (θ,)
    p_value: float  # of the hypothesis that the estimate is the maximum, but for its noise
    passes: int  # M

    @property
    def holds(self) -> bool:
        """Whether the interval around the displacement is narrow and contains 0.

        All coordinates together, with a false alarm in 1000.
        """
        return self.p_value >= _FALSE_ALARM and float(self.error.max()) <= _WIDEST


def search(
    likelihood: Likelihood, theta: Tensor, *, tolerance: float, iterations: int
) -> Iterator[State]:
    """Maximise; a state after each iteration, of which the last one has reached the tolerance.

    Args:
        likelihood: with its source of randomness.
        theta: where to start.
        tolerance: the largest Monte Carlo error, in standard errors.
        iterations: it ends after so many, whatever the noise.
    """
    n = 0
    at = theta
    for at in _scoring(likelihood, theta):
        n += 1
        yield State(n, False, at)
        if n == iterations:
            return
    for state in _averaging(likelihood, at, tolerance):
        n += 1
        yield replace(state, iteration=n)
        if n == iterations:
            return


def _scoring(likelihood: Likelihood, theta: Tensor) -> Iterator[Tensor]:
    """Iterates of the first phase."""
    calm = 0
    for _ in range(_MOST_SCORING):
        score, matrix = likelihood.adaptive(theta)
        # A column of Λ that is 0 has no score: it moves on the scale of the others.
        matrix = matrix + 1e-6 * matrix.diagonal().mean() * torch.eye(len(score)).to(matrix)
        step = torch.linalg.solve(matrix, score)
        # Under noise alone the mean of this is at most the number of parameters.
        calm = calm + 1 if float(score @ step) < 2.0 * len(theta) else 0
        theta = theta + _bounded(likelihood, step)
        yield theta
        if calm == _CALM:
            return


def _bounded(likelihood: Likelihood, step: Tensor) -> Tensor:
    """A step that moves no linear predictor too far."""
    length = likelihood.length(step)
    return step * (_LONGEST_STEP / length) if length > _LONGEST_STEP else step


def _averaging(likelihood: Likelihood, theta: Tensor, tolerance: float) -> Iterator[State]:
    """States of the second phase; I is from where the average began, next to where it ends."""
    found = _information(likelihood, theta)
    at, bar, seen = theta, torch.zeros_like(theta), []
    while True:
        score = likelihood.score(theta)
        seen.append((score, theta))
        n = len(seen)
        theta = theta + _bounded(likelihood, n**-_DECAY * (found.inverse @ score))
        bar = bar + (theta - bar) / n
        state = State(n, True, bar, found.matrix, None, n, found.definite)
        regular = n % _fewest(theta) == 0
        if not regular and n != _EARLY:
            yield state
            continue
        known = replace(state, noise=_noise(seen, bar, found))
        # Noise is no reason to begin anew before the first regular look.
        far = (bar - at).abs() - (0.0 if regular else 3.0 * known.monte_carlo_errors)
        if float((far / known.standard_errors).max()) > _MOVED:
            yield state
            found = _information(likelihood, bar)
            theta, at, bar, seen = bar, bar, torch.zeros_like(bar), []
            continue
        if not regular:
            yield state
            continue
        yield known
        if known.largest_noise <= tolerance:
            return


class _Information(NamedTuple):
    """I and its inverse; where I is not positive definite, something that is."""

    matrix: Tensor
    inverse: Tensor
    definite: bool


def _information(likelihood: Likelihood, theta: Tensor) -> _Information:
    """The information at θ; negative curvature is taken as positive, to move away from it."""
    values, vectors = torch.linalg.eigh(likelihood.information(theta))
    least = _FLATTEST * float(values.abs().max())
    definite = float(values.min()) > least
    values = values.abs().clamp(min=least)
    return _Information((vectors * values) @ vectors.T, (vectors / values) @ vectors.T, definite)


def _noise(seen: list[tuple[Tensor, Tensor]], bar: Tensor, found: _Information) -> Tensor:
    """I^{-1} V I^{-1}."""
    scores, thetas = (torch.stack(list(column)) for column in zip(*seen, strict=True))
    noise = _covariance(scores + (thetas - bar) @ found.matrix)
    return found.inverse @ noise @ found.inverse


def _covariance(rows: Tensor) -> Tensor:
    return torch.cov(rows.T).reshape(rows.shape[1], rows.shape[1])


def _fewest(theta: Tensor) -> int:
    """Scores for a covariance that means something."""
    return max(_FEWEST, 2 * len(theta))


def certify(likelihood: Likelihood, state: State) -> Certificate:
    """Scores at the estimate from new random numbers, half as many as it took."""
    assert state.information is not None
    assert state.noise is not None
    n, m = state.averaged, max(_CERTIFYING, _fewest(state.theta), state.averaged // 2)
    scores = likelihood.scores(state.theta, m)
    inverse = torch.linalg.inv(state.information)
    errors, moved = inverse.diagonal().sqrt(), inverse @ scores.mean(0)
    new = inverse @ _covariance(scores) @ inverse
    freedom = n + m - 2
    covariance = ((n - 1) * state.noise + (m - 1) * new) / freedom * (1.0 / n + 1.0 / m)
    # A coordinate without any noise, as a gaussian response has them, is known up to rounding.
    covariance = covariance + torch.diag((_ROUNDING * errors).square())
    found = hotelling(moved, covariance, freedom)
    p_value = float(fdtrc(*found.degrees, found.f))
    return Certificate(moved / errors, covariance.diagonal().sqrt() / errors, p_value, m)
