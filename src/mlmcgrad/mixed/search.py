"""Stochastic maximum likelihood: scoring steps, then Newton steps, until the noise is small.

With S_1, S_2, … independent unbiased estimates of the score:

1. θ_n = θ_{n−1} + A_n S_n with A_n^{-1} = Σ_g s_g s_gᵀ, the outer products of the group scores (the
   adaptive matrix), until the score is no larger than its noise. With many groups, each step uses a
   random subset.
2. At the resulting point θ_0, θ̄ = θ_0 + I^{-1} S̄ with the observed information I and the mean S̄
   of N scores at θ_0. If θ̄ is far from θ_0, the step is repeated from θ̄. If V is the covariance
   of the scores, the covariance of θ̄ about the maximum is I^{-1} V I^{-1} / N. The search ends
   when the root of each diagonal entry is below a given fraction of the standard error. If the
   likelihood is known without noise, Newton's method with exact scores is used instead: a step is
   halved while the likelihood decreases, and the search ends at rounding error.
3. The certificate: M independent scores at θ̄, with mean S̄. They estimate the distance from θ̄ to
   the maximum by I^{-1} S̄, with the covariance I^{-1} V I^{-1} (1/M + 1/N) if θ̄ is the maximum but
   for its Monte Carlo error. As V is estimated from N + M scores, the test is Hotelling's.

The information is the mean of independent estimates, whose spread gives its Monte Carlo error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from scipy.special import fdtrc, stdtrit
from torch import Tensor

from mlmcgrad.mixed.parameters import Layout

_FLATTEST = 1e-8  # smallest eigenvalue of I, relative to the largest
_UNCERTAIN = 3.0  # Monte Carlo errors of an eigenvalue below which it counts as 0
_FLAT = 1e-4  # eigenvalue for which a standard error is 100 units of the search
_FEWEST = 12  # scores in a mean, and at least twice the number of parameters
_CERTIFYING, _MOST_CERTIFYING = 16, 2000  # scores in a certificate, with the same minimum
_FALSE_ALARM, _WIDEST = 1e-3, 0.2
_LEVEL = 0.95  # of the bound that a certificate states
_EARLY = 4  # scores after which a step that is too long is repeated
_CALM = 2  # consecutive scoring steps whose score is noise
_LONGEST_STEP = 1.5  # change of a linear predictor in one step,
_GROWTH = 0.25  # or its share of the largest linear predictor
_SLOW = 0.3  # of the squared length of a step without noise: the next one is hardly shorter
_MOST_SCORING = 40  # steps; they would never end if all groups were alike
_MOVED = 0.05  # standard errors between θ̄ and θ_0: beyond it the step is repeated
_NEAR = 0.05  # bound in standard errors that is small enough, even if the distance is not noise
_BACK = 0.25  # of the last step, in the other direction: half as long a step is taken next
_SHARES = (1.0, 0.5, 0.25)  # of a step away from a point that is not a maximum
_ROUNDING = 1e-3  # standard errors below which a distance counts as rounding
_HALVINGS, _LOST = 20, 1e-12  # of exact steps, and the relative loss that counts as rounding
_THERE = 1e-10  # squared standard errors: an exact step that is shorter is the last one
_FAST = 0.01  # of them left after a step: the same information serves for the next one
_EFFORTS = (1, 4, 16, 64)  # multiples of the draws for the information
_SOUND = 0.1  # Monte Carlo error of a standard error that is good enough for steps


@dataclass(frozen=True)
class LogLikelihood:
    """An estimate of the log-likelihood as a sum of independent parts."""

    value: Tensor  # (parts,)
    deviation: Tensor  # (parts, blocks): relative deviation of each block from the mean of its part
    shift: float = 0.0  # a constant that is added

    @staticmethod
    def of(log_w: Tensor) -> LogLikelihood:
        """Return the sum of log mean weights, corrected for the bias of the logarithm of a mean.

        Args:
            log_w: log weights of independent draws, (parts, blocks, draws).
        """
        top = log_w.amax((1, 2))
        w = (log_w - top[:, None, None]).exp().mean(2)
        mean = w.mean(1)
        deviation = w / mean[:, None] - 1.0
        value = top + mean.log() + 0.5 * deviation.var(1) / w.shape[1]
        return LogLikelihood(value, deviation)

    @property
    def total(self) -> float:
        """The log-likelihood."""
        return float(self.value.sum()) + self.shift

    @property
    def error(self) -> float:
        """Its Monte Carlo standard error."""
        return float((self.deviation.var(1).sum() / self.deviation.shape[1]).sqrt())

    def minus(self, other: LogLikelihood) -> tuple[float, float]:
        """Return the difference and its error, small if both use the same random numbers."""
        if self.deviation.shape == other.deviation.shape:
            error = replace(self, deviation=self.deviation - other.deviation).error
        else:
            error = math.hypot(self.error, other.error)
        return self.total - other.total, error


@dataclass(frozen=True)
class Information:
    """The observed information I at a point, the mean of independent estimates.

    An eigenvalue within its Monte Carlo error of 0 counts as 0.
    """

    estimates: Tensor  # (n, θ, θ), symmetric

    @staticmethod
    def at(likelihood: MarginalLikelihood, theta: Tensor, error: float) -> Information:
        """Estimate the information at θ.

        Args:
            likelihood: the likelihood.
            theta: θ.
            error: largest Monte Carlo error of a standard error, relative to it. It is exceeded if
                reaching it would take too many draws.
        """
        for effort in _EFFORTS:
            found = Information(likelihood.information(theta, effort))
            values, _, margin = found._eigen
            hidden = (values.abs() <= margin) & (values + margin > _FLAT)
            if not bool(hidden.any()) and float(found.noise().max()) <= error:
                break
        return found

    @cached_property
    def matrix(self) -> Tensor:
        """I, (θ, θ)."""
        return self.estimates.mean(0)

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return eigenvalues, eigenvectors, and the values below which an eigenvalue may be 0."""
        values, vectors = torch.linalg.eigh(self.matrix)
        each = torch.einsum("ik,nij,jk->nk", vectors, self.estimates, vectors)
        error = _UNCERTAIN * each.std(0) / len(each) ** 0.5
        return values, vectors, error.clamp(min=_FLATTEST * float(values.abs().max()))

    @cached_property
    def inverse(self) -> Tensor:
        """I^{-1} with the sign of negative eigenvalues reversed, and 0 for those that may be 0."""
        values, vectors, error = self._eigen
        return (vectors * torch.where(values.abs() > error, 1.0 / values.abs(), 0.0)) @ vectors.T

    @property
    def flat(self) -> Tensor:
        """The eigenvectors whose eigenvalues may not be positive, (θ, …)."""
        values, vectors, error = self._eigen
        return vectors[:, ~(values > error)]

    @property
    def rising(self) -> Tensor:
        """A step in the direction in which the likelihood curves upwards most, (θ,); 0 if none."""
        values, vectors, error = self._eigen
        length = values[0].abs().rsqrt() if values[0] < -error[0] else 0.0
        return vectors[:, 0] * length

    @property
    def standard_errors(self) -> Tensor:
        """Roots of the diagonal of I^{-1}, (θ,)."""
        return self.inverse.diagonal().sqrt()

    def noise(self, units: Tensor | None = None) -> Tensor:
        """Return the Monte Carlo error of each standard error, relative to it, (θ,).

        With the matrix T of `units` those of the parameters Tθ.
        """
        root = self.inverse if units is None else units @ self.inverse
        inverse = self.inverse if units is None else root @ units.T
        # To first order d log s_k = −½ (I^{-1} dI I^{-1})_kk / (I^{-1})_kk.
        moved = root @ (self.estimates - self.matrix) @ root.T
        each = 0.5 * moved.diagonal(dim1=1, dim2=2) / inverse.diagonal()
        return (each.std(0) / len(each) ** 0.5).nan_to_num()


class MarginalLikelihood(Protocol):
    """The likelihood of a model as a function of θ, estimated with its own random numbers."""

    @property
    def layout(self) -> Layout:
        """The layout of θ."""

    exact: bool
    """Whether all but `scores` and `adaptive` is free of noise."""

    @property
    def method(self) -> str:
        """How the integrals are computed, in words."""

    def value_and_score(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the exact log-likelihood and its gradient, if `exact`."""

    def curvature(self, theta: Tensor) -> Tensor:
        """Return the information for a Newton step, (θ, θ), if `exact`."""

    def settle(self, theta: Tensor) -> bool:
        """Make the integrals at θ precise; return whether that changes them, or `exact`."""

    def scores(self, theta: Tensor, count: int) -> Tensor:
        """Return independent unbiased estimates of the score, (count, θ)."""

    def adaptive(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return a score, of a random part of large data, and the matrix A^{-1} for its step.

        The matrix is at least the covariance of the score, up to its noise.
        """

    def information(self, theta: Tensor, effort: int) -> Tensor:
        """Return independent estimates of the observed information, (n, θ, θ), symmetric.

        Their mean takes `effort` times the usual draws.
        """

    def log_likelihood(self, theta: Tensor, generator: torch.Generator) -> LogLikelihood:
        """Estimate the log-likelihood."""

    def effects(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return mean and covariance of b given the data for each factor, (g, q) and (g, q, q)."""

    def length(self, step: Tensor) -> float:
        """Return how far a step of θ moves the linear predictor of a row."""


@dataclass(frozen=True)
class SearchState:
    """The search after some iterations."""

    iteration: int
    theta: Tensor  # θ̄, or θ before there is an average
    information: Information | None = None  # None before there is an average
    covariance: Tensor | None = None  # V, (θ, θ); None with too few scores
    averaged: int = 0  # N

    @property
    def monte_carlo_covariance(self) -> Tensor:
        """The covariance of θ̄ about the maximum; NaN before it is estimated."""
        if self.information is None or self.covariance is None:
            return self.theta.new_full((len(self.theta), len(self.theta)), math.nan)
        inverse = self.information.inverse
        return inverse @ self.covariance @ inverse / self.averaged

    @property
    def monte_carlo_errors(self) -> Tensor:
        """Standard deviations of θ̄ about the maximum, (θ,)."""
        return self.monte_carlo_covariance.diagonal().clamp(min=0.0).sqrt()

    @property
    def largest_noise(self) -> float:
        """The largest Monte Carlo error in standard errors; infinite before it is estimated."""
        if self.information is None or self.covariance is None:
            return math.inf
        return float(
            (self.monte_carlo_errors / self.information.standard_errors).nan_to_num().max()
        )


@dataclass(frozen=True)
class FitCertificate:
    """The distance from the estimate to the maximum, by independent scores at the estimate."""

    displacement: Tensor  # I^{-1} S̄ in standard errors, (θ,)
    error: Tensor  # its standard deviation if the estimate is the maximum, (θ,)
    bound: float  # on the largest distance of a coordinate, in standard errors, at the level 95 %
    p_value: float  # of the hypothesis that the distance is Monte Carlo noise
    scores: int  # M

    @property
    def holds(self) -> bool:
        """Whether the maximum is near: the bound is at most 0.05, or the distance may be noise.

        The test of noise covers all coordinates together, at the level 0.001, and counts only if
        the error of the distance is small.
        """
        noise = self.p_value >= _FALSE_ALARM and float(self.error.max()) <= _WIDEST
        return noise or self.bound <= _NEAR


def search(
    likelihood: MarginalLikelihood, theta: Tensor, tolerance: float, iterations: int
) -> Iterator[SearchState]:
    """Maximise a likelihood from θ; yield a state after each iteration, one estimate of the score.

    The search ends at a Monte Carlo error of `tolerance` standard errors.
    """
    state = SearchState(0, theta)
    for at in _scoring(likelihood, theta, min(iterations, _MOST_SCORING)):
        state = SearchState(state.iteration + 1, at)
        yield state
    while likelihood.exact and state.iteration < iterations:
        n = state.iteration
        for found in _climb(likelihood, state.theta, iterations - n):
            state = replace(found, iteration=n + found.averaged)
            yield state
        if likelihood.exact and state.information is not None and state.covariance is not None:
            higher = _higher(likelihood, state.theta, state.information.rising)
            if higher is None:
                return
            state = replace(state, theta=higher)
    at, share, before = state.theta, 1.0, torch.zeros_like(theta)
    while state.iteration < iterations:
        n = state.iteration
        for found in _newton(likelihood, at, tolerance, iterations - n):
            state = replace(found, iteration=n + found.averaged)
            yield state
        assert state.information is not None
        step = (state.theta - at) / state.information.standard_errors
        # Newton's method may go back and forth between two points.
        back = float(step @ before) < -_BACK * float(before @ before)
        share = 0.5 * share if back else min(1.0, 2.0 * share)
        at, before = at + share * (state.theta - at), step
        if state.largest_noise <= tolerance:
            # The score of a standard deviation is 0 at 0, even where the likelihood is smallest.
            higher = _higher(likelihood, at, state.information.rising)
            if higher is None:
                return
            at = higher


def _scoring(likelihood: MarginalLikelihood, theta: Tensor, most: int) -> Iterator[Tensor]:
    """Yield the iterates of the first phase."""
    calm, left = 0, math.inf
    for _ in range(most):
        score, matrix = likelihood.adaptive(theta)
        # A column of Λ that is 0 has no score: it gets the scale of the other parameters.
        matrix = matrix + 1e-6 * matrix.diagonal().mean() * torch.eye(len(score)).to(matrix)
        step = torch.linalg.solve(matrix, score)
        # For a score of pure noise the mean of this is at most the number of parameters.
        before, left = left, float(score @ step)
        near = left < 2.0 * len(theta)
        if likelihood.exact:  # without noise the steps are worth it while they make progress
            near = near and left > _SLOW * before
        calm = calm + 1 if near else 0
        theta = theta + _bounded(likelihood, theta, step)
        yield theta
        if calm == (1 if likelihood.exact else _CALM):
            return


def _climb(likelihood: MarginalLikelihood, theta: Tensor, most: int) -> Iterator[SearchState]:
    """Yield Newton steps from θ with exact scores; the last one is rounding."""
    likelihood.settle(theta)
    information, (value, score) = None, likelihood.value_and_score(theta)
    for n in range(1, most + 1):
        if not likelihood.exact:
            return
        if information is None:
            information = Information(likelihood.curvature(theta).expand(2, -1, -1))
        step = _bounded(likelihood, theta, information.inverse @ score)
        shorter = False
        for _ in range(_HALVINGS):
            found = likelihood.value_and_score(theta + step)
            if found[0] >= value - _LOST * abs(value):
                break
            step, shorter = 0.5 * step, True
        # The squared length in standard errors of the step, and of the next one.
        went = float(score @ information.inverse @ score)
        theta, (value, score) = theta + step, found
        left = float(score @ information.inverse @ score)
        changed = (left <= _THERE or shorter) and likelihood.settle(theta)
        there = left <= _THERE and not changed
        covariance = theta.new_zeros(len(theta), len(theta)) if there else None
        yield SearchState(0, theta, information, covariance, n)
        if there:
            return
        if changed and likelihood.exact:
            value, score = likelihood.value_and_score(theta)
        if left > _FAST * went:
            information = None


def _newton(
    likelihood: MarginalLikelihood, theta: Tensor, tolerance: float, most: int
) -> Iterator[SearchState]:
    """Yield Newton steps from θ with more and more scores, until one is too long or precise."""
    information = Information.at(likelihood, theta, _SOUND)
    scores, fewest = theta.new_zeros(0, len(theta)), max(_FEWEST, 2 * len(theta))
    while len(scores) < most:
        n = len(scores)
        count = min(fewest - n % fewest if n else _EARLY, most - n)
        scores = torch.cat([scores, likelihood.scores(theta, count)])
        means = scores.cumsum(0) / torch.arange(1, n + count + 1)[:, None]
        for i in range(n, n + count - 1):
            step = _bounded(likelihood, theta, information.inverse @ means[i])
            yield SearchState(0, theta + step, information, None, i + 1)
        step = _bounded(likelihood, theta, information.inverse @ means[-1])
        state = SearchState(0, theta + step, information, _covariance(scores), len(scores))
        # Before there are many scores, noise is no reason to repeat a step.
        enough = len(scores) >= fewest
        far = step.abs() - (0.0 if enough else 3.0 * state.monte_carlo_errors)
        moved = bool((far > _MOVED * information.standard_errors).any())
        known = enough and not moved
        yield state if known else replace(state, covariance=None)
        if moved or (known and state.largest_noise <= tolerance):
            return


def _higher(likelihood: MarginalLikelihood, theta: Tensor, step: Tensor) -> Tensor | None:
    """Return a point at the end of a step, or before it, where the likelihood is larger."""
    if not bool(step.any()):
        return None
    points = [theta, *(theta + share * _bounded(likelihood, theta, step) for share in _SHARES)]
    here, *there = (
        likelihood.log_likelihood(point, torch.Generator().manual_seed(0)) for point in points
    )
    for point, value in zip(points[1:], there, strict=True):
        difference, error = value.minus(here)
        if difference > 2.0 * error:
            return point
    return None


def _bounded(likelihood: MarginalLikelihood, theta: Tensor, step: Tensor) -> Tensor:
    """Shorten a step that moves a linear predictor too far."""
    longest = max(_LONGEST_STEP, _GROWTH * likelihood.length(theta))
    return step * min(1.0, longest / max(likelihood.length(step), 1e-300))


def _covariance(rows: Tensor) -> Tensor:
    return torch.cov(rows.T).reshape(rows.shape[1], rows.shape[1])


def certify(
    likelihood: MarginalLikelihood, state: SearchState, tolerance: float
) -> tuple[FitCertificate, SearchState]:
    """Test the estimate with new scores; the state gets the covariance of all.

    They are half as many as the estimate has; an exact estimate gets as many as place it to √2
    times the tolerance.
    """
    assert state.information is not None
    assert state.covariance is not None
    inverse, errors = state.information.inverse, state.information.standard_errors
    errors = torch.where(errors > 0.0, errors, 1.0)  # of what the data do not determine
    d, n = len(state.theta), math.inf if likelihood.exact else state.averaged
    m = max(_CERTIFYING, 2 * d, 0 if likelihood.exact else state.averaged // 2)
    scores = likelihood.scores(state.theta, m)
    if likelihood.exact:
        pooled, freedom = _covariance(scores), m - 1
        noise = float(((inverse @ pooled @ inverse).diagonal().sqrt() / errors).max())
        more = min(math.ceil(0.5 * (noise / tolerance) ** 2), _MOST_CERTIFYING) - m
        if more > 0:
            scores = torch.cat([scores, likelihood.scores(state.theta, more)])
            m = len(scores)
            pooled, freedom = _covariance(scores), m - 1
    else:
        freedom = state.averaged + m - 2
        pooled = (state.averaged - 1) * state.covariance + (m - 1) * _covariance(scores)
        pooled = pooled / freedom
    moved = inverse @ scores.mean(0)
    # With a gaussian response some coordinates have no noise but rounding.
    rounding = torch.diag((_ROUNDING * errors).square())
    covariance = inverse @ pooled @ inverse * (1.0 / n + 1.0 / m) + rounding
    t_squared = float(moved @ torch.linalg.solve(covariance, moved))  # Hotelling's
    f = t_squared * (freedom - d + 1) / (freedom * d)
    p_value = float(fdtrc(d, freedom - d + 1, f))
    # Of the mean of the new scores about the score at the estimate; Bonferroni's correction.
    error = (inverse @ pooled @ inverse / m + rounding).diagonal().sqrt()
    quantile = float(stdtrit(freedom, 1.0 - (1.0 - _LEVEL) / (2 * d)))
    bound = float(((moved.abs() + quantile * error) / errors).max())
    certificate = FitCertificate(
        moved / errors, covariance.diagonal().sqrt() / errors, bound, p_value, m
    )
    return certificate, state if likelihood.exact else replace(state, covariance=pooled)
