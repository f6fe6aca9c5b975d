"""Bias and variance of simulations of any length, within a pilot and beyond it.

**Variance of chains.** The mean of p steps of a stationary autoregression with ρ = e^{−1/τ} has the
variance σ² v(p), see `average_variance`; τ is fitted to the variances of H^{(p)} at the end of the
pilot. Beyond the pilot both halves of a chain have the same distribution, so with r = v(2p)/v(p),
close to 1/2,

    Var(H^{(2p)}) = r Var(H^{(p)}),     Cov(H^{(2p)} − H^{(p)}, ·) = −(1 − r) Cov(H^{(p)}, ·)

for everything in its first half.

**Variance of importance sampling.** A simulation of 2^j blocks is 2^{j−L} independent ones of 2^L,
so covariances up to L are those of the pilot divided by this number; the variance of D_l beyond L
continues to fall at the same rate.

**Bias.** For a chain, E[H(X_t)] − lim = Σ_k A_k e^{−(t−1)/τ_k}: a fast mode, a slow mode and an
oscillating one suffice, with unknown vectors A_k and times τ_k. So the bias of length p is

    b(p) = Σ_k A_k s_k(p),     s_k(p) = (1/p) Σ_{t≤p} e^{−(t−1)/τ_k}.

For importance sampling, s_k(p) = (1 + τ_k)/(p + τ_k), which falls as 1/p once there are enough
draws for its weights, and p^{−2}. A pilot measures the differences δ_l = b(2^l) − b(2^{l−1}) with
noise. For each pair of times on a grid, A is a linear regression with a normal prior: the start is
about a standard deviation of H away from the limit, importance sampling a fifth of one, or less,
because few of many coordinates may be biased. These scales and the pairs are weighted by their
evidence, with a prior that places the slow time near the relaxation time τ. The result is the
posterior mean of the squared bias, and its standard deviation. Where noise hides the differences
the posterior is the prior; a pilot that is too short leaves long times possible, and with them a
large bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad.diagnostics._pilot import Pilot

_LONG = 16.0  # relaxation times in the longest simulations of a reliable pilot
_SMALL = 0.1  # share of the largest weight
_SOME = 4.0  # relaxation times of an average that the autoregression describes
_SHORTEST = 5  # level of a pilot that can distinguish slow chains from fast ones
_PLATEAU = 0.7  # ratio of variances of neighbouring levels above which they are constant
_TIMES = 200  # relaxation times on the grid
_STEEPEST, _SLOWEST = 0.2, 0.7  # ratio of the variances of D_l, for importance sampling
_PER_OCTAVE = 2  # times on the grid of the bias
_FASTEST = 0.25  # steps
_OFF = 0.1  # relative error of a difference, because the model has few modes
_REST = 0.02  # the same where there is no data, for the bias after a burn-in
_TAIL = 6  # levels beyond the longest that matter there
_BACK = 0.5  # minus the eigenvalue of an oscillating mode
_FAR = 0.6  # prior standard deviation of log(slow time / relaxation time)
_SCALES = 6  # prior scales, each a quarter of the one before
_LESS = 1.5  # by which the log prior falls from scale to scale: large biases are more likely
_RARE = 1e-4  # probability below which models are dropped
_HEAVIER = 1.3  # by which the prior falls from one time of importance sampling to the next
_CLOSE = 0.2  # prior bias of importance sampling, in standard deviations of H

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Decay:
    """Bias and covariances of simulations of any length, from a pilot."""

    pilot: Pilot
    _beyond: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def highest(self) -> int:
        """L, the highest level of the pilot."""
        return self.pilot.highest

    def products(self, level: int) -> Tensor:
        """Return the mean over rows of Σ_i E[D_l]_i E[D_m]_i, (level + 1, level + 1).

        Beyond the pilot, means are halved from level to level.
        """
        known = self._products
        place = [min(m, self.highest) for m in range(level + 1)]
        scale = torch.tensor([2.0 ** min(0, self.highest - m) for m in range(level + 1)]).double()
        return known[place][:, place] * scale * scale[:, None]

    def mean_square(self, level: int) -> float:
        """Return ‖E[H^{(2^level)}]‖² ≥ 0; beyond the pilot, that of its longest simulations."""
        return max(0.0, self.pilot.mean_square(min(level, self.highest)))

    def left(self, level: int) -> float:
        """Return a lower estimate of ‖E[H^{(2^level)}]‖²: less its standard error, at least 0.

        If the simulations of this length do not cover every row of the data, a shorter length is
        used, because rows differ more than lengths do.
        """
        pilot = self.pilot
        level = max(m for m in range(min(level, self.highest) + 1) if m == 0 or pilot.covers(m))
        square, noise = self.mean_square(level), self._variances[level] / pilot.count(level)
        # For m + noise with d equal coordinates: Var ‖·‖² = 4 m² noise / d + 2 noise² / d.
        error = math.sqrt((4.0 * square * noise + 2.0 * noise**2) / self.approach.dimensions)
        return max(0.0, square - error)

    def bias(self, weights: dict[int, float]) -> Squared:
        """Return the squared bias of the mean Σ_l a_l E[H^{(2^l)}]; see `Approach.bias`."""
        return self.approach.bias(weights)

    @cached_property
    def approach(self) -> Approach:
        """The posterior distribution of the bias."""
        return Approach(self.pilot, max(self._variances[0], self._autoregression[1]), self.time)

    def covariance(self, level: int) -> Tensor:
        """Return Σ_i Cov(D_l, D_m)_i of simulations of length 2^level, (level + 1, level + 1)."""
        if level <= self.highest:
            return self._covariances[level]
        if level not in self._beyond:
            self._beyond[level] = self._groups(level) if self.pilot.nested else self._chain(level)
        return self._beyond[level]

    @property
    def time(self) -> float:
        """τ of the fitted autoregression, whose correlation is e^{−1/τ} per step.

        It estimates the relaxation time, in steps, and not the integrated autocorrelation time.
        """
        return self._autoregression[0]

    @property
    def long_enough(self) -> bool:
        """Whether the longest simulations exceed 16 τ, or have no dominant weight."""
        if self.pilot.nested:
            return self.pilot.groups[-1].largest <= _SMALL
        return 2.0**self.highest >= max(2.0**_SHORTEST, _LONG * self.time)

    def variance_error(self, level: int) -> float:
        """Return the relative standard error of the variance of H^{(2^level)}."""
        level = min(level, self.highest)
        alike = self.pilot.alike(level)
        parts = [self.pilot.deviations(h[:, level])[0].square().sum(1) * c for c, h in alike]
        squares = torch.cat(parts)
        return float(squares.std() / squares.mean().clamp(min=1e-300)) / math.sqrt(len(squares))

    @cached_property
    def _first(self) -> int:
        """The level after which variances fall; before it they may grow."""
        flat = 0
        for level in range(1, self.highest + 1):
            least = 1.0 - 1.5 * math.sqrt(2.0 / self.pilot.count(level))  # noise of a variance
            if self._variances[level] * least > _PLATEAU * self._variances[level - 1]:
                flat = level
        return flat

    @cached_property
    def _autoregression(self) -> tuple[float, float]:
        """τ and σ², by weighted least squares in the logarithms of variances."""
        first = self._first
        if self._variances[first] <= 0.0:  # constant
            return 0.1, 0.0
        if first == self.highest > 0:  # variances do not fall yet
            time = 2.0**self.highest
            return time, self._variances[first] / average_variance(time, time)
        levels = range(first, self.highest + 1)
        counts = [self.pilot.count(level) for level in levels]

        def ratios(time: float) -> NDArray[np.float64]:
            model = [average_variance(time, 2.0**level) for level in levels]
            measured = [max(self._variances[level], 1e-300) for level in levels]
            return np.log(np.array(measured) / np.array(model))

        def misfit(time: float) -> float:
            logs = ratios(time)
            return float(np.average((logs - np.average(logs, weights=counts)) ** 2, weights=counts))

        time = float(min(np.geomspace(0.1, 4.0 * 2**self.highest, _TIMES), key=misfit))
        return time, math.exp(np.average(ratios(time), weights=counts))

    @cached_property
    def _products(self) -> Tensor:
        return self.pilot.products(self.highest)

    @cached_property
    def _covariances(self) -> list[Tensor]:
        return [self.pilot.covariance(level) for level in range(self.highest + 1)]

    @cached_property
    def _variances(self) -> list[float]:
        """Variances of H^{(2^l)}, the sum of all differences up to l."""
        return [float(covariance.sum()) for covariance in self._covariances]

    def _chain(self, level: int) -> Tensor:
        matrix = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        known = self.highest + 1
        for top, covariance in enumerate(self._covariances):  # of all long enough simulations
            matrix[top, : top + 1] = covariance[top]
            matrix[: top + 1, top] = covariance[top]
        # The autoregression has the least noisy variance of the longest simulations.
        end = self._autoregression[1] * average_variance(self.time, 2.0**self.highest)
        matrix[known - 1, known - 1] += end - float(matrix.sum())
        for beyond in range(known, level + 1):
            ratio = average_variance(self.time, 2.0**beyond)
            ratio /= average_variance(self.time, 2.0 ** (beyond - 1))
            new = -(1.0 - ratio) * matrix[:beyond, :beyond].sum(1)
            matrix[beyond, :beyond] = matrix[:beyond, beyond] = new
            matrix[beyond, beyond] = -float(new.sum())
        # Entries come from several samples, so eigenvalues may be negative.
        values, vectors = torch.linalg.eigh(matrix)
        return vectors @ torch.diag(values.clamp(min=0.0)) @ vectors.T

    def average_variance(self, length: int, burn_in: int) -> float | None:
        """Return the variance of an average of long chains by the autoregression, or None.

        It is less noisy than the variance of the pilot's chains of one length.
        """
        long = self.long_enough and length >= _SOME * self.time
        if self.pilot.nested or not (long or burn_in + length > 2**self.highest):
            return None
        return self._autoregression[1] * average_variance(self.time, float(length))

    def _groups(self, level: int) -> Tensor:
        matrix = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        known = self.highest + 1
        matrix[:known, :known] = self._covariances[-1] * 2.0 ** (self.highest - level)
        own = [float(self._covariances[m][m, m]) for m in range(known)]  # of length 2^m
        factor = 0.5
        if known > 2 and own[-2] > 0.0:
            factor = min(_SLOWEST, max(_STEEPEST, own[-1] / own[-2]))
        for beyond in range(known, level + 1):
            own_variance = own[-1] * factor ** (beyond - self.highest)
            matrix[beyond, beyond] = own_variance * 2.0 ** (beyond - level)
        return matrix


def average_variance(time: float, p: float) -> float:
    """Return v(p): the variance of the mean of p steps relative to one step, ρ = e^{−1/time}."""
    rho = math.exp(-1.0 / time)
    return ((1.0 + rho) / (1.0 - rho) - 2.0 * rho * (1.0 - rho**p) / (p * (1.0 - rho) ** 2)) / p


@dataclass(frozen=True)
class Squared:
    """A squared bias and its standard error."""

    value: float
    se: float

    @property
    def cautious(self) -> float:
        """An upper estimate: the value and its standard error."""
        return max(0.0, self.value) + self.se


@dataclass(frozen=True)
class _Model:
    """Two modes, and the posterior distribution of their vectors."""

    modes: tuple[float, ...]  # τ, the slow one last
    mean: Array  # (modes, d)
    covariance: Array  # (modes, modes), summed over coordinates
    weight: float


@dataclass(frozen=True)
class Approach:
    """The posterior distribution of the bias, from a pilot."""

    pilot: Pilot
    scale: float  # variance of H(X) in the limit, the sum over coordinates
    time: float  # relaxation time; not used for importance sampling
    _known: dict[Any, Squared] = field(default_factory=dict, init=False, repr=False)

    def bias(self, weights: dict[int, float]) -> Squared:
        """Return ‖Σ_l a_l b(2^l)‖², of the mean Σ_l a_l E[H^{(2^l)}] with weights that sum to 1."""
        main = self._posterior(weights)
        # Modes outside the model may leave some of b = −Σ_m (Σ_{l<m} a_l) δ_m.
        squares = []
        for m in range(min(weights) + 1, max(weights) + _TAIL):
            a = math.fsum(x for level, x in weights.items() if level < m)
            squares.append(a * a * self._posterior({m: 1.0, m - 1: -1.0}).value)
        rest = _REST**2 * math.fsum(squares)
        return Squared(main.value + rest, math.hypot(main.se, rest))

    @np.errstate(under="ignore")
    def _posterior(self, weights: dict[int, float]) -> Squared:
        key = tuple(sorted(weights.items()))
        if key not in self._known:
            a = np.array(list(weights.values()))
            shapes = np.stack([self._shape(m.modes, list(weights)) for m in self._models])
            c = np.einsum("l,mlk->mk", a, shapes)
            mean = np.einsum("mk,mkd->md", c, np.stack([m.mean for m in self._models]))
            covariance = np.stack([m.covariance for m in self._models])
            square, spread = (mean**2).sum(1), np.einsum("mk,mkj,mj->m", c, covariance, c)
            variance = (4.0 * square * spread + 2.0 * spread**2) / self.dimensions
            probability = np.array([m.weight for m in self._models])
            first = float(probability @ (square + spread))
            second = float(probability @ (variance + (square + spread) ** 2))
            self._known[key] = Squared(first, math.sqrt(max(0.0, second - first * first)))
        return self._known[key]

    @property
    def slow(self) -> float:
        """Posterior probability that a mode takes longer than half the longest simulations."""
        return math.fsum(
            m.weight for m in self._models if m.modes[-1] > 2.0 ** (self.pilot.highest - 1)
        )

    @cached_property
    def dimensions(self) -> float:
        """Effective number of independent coordinates of the noise."""
        x = self.pilot.difference(min(1, self.pilot.highest))
        c = x - x.mean(0)
        c = (c.T @ c).double()
        square = float((c * c).sum())
        return max(1.0, float(c.trace()) ** 2 / square) if square > 0.0 else 1.0

    @cached_property
    @np.errstate(under="ignore")
    def _models(self) -> list[_Model]:
        means = [self.pilot.mean(level) for level in range(1, self.pilot.highest + 1)]
        delta = np.array([mean.numpy() for mean, _ in means]).reshape(
            -1, self.pilot.groups[0].estimates.shape[-1]
        )
        noise = np.array([error for _, error in means])
        noise = noise + _OFF**2 * (delta * delta).sum(1) + 1e-12 * self.scale + 1e-300
        products = delta @ delta.T  # sufficient for the evidence
        # Prior variances of A, summed over the coordinates, of which few may be biased.
        largest = max(self.scale, 1e-300) * (_CLOSE**2 if self.pilot.nested else 1.0) / 3.0
        fits = []
        for modes in self._pairs():
            x = np.diff(self._shape(modes, range(self.pilot.highest + 1)), axis=0)
            for i in range(_SCALES):
                prior = largest * 4.0**-i
                log = self._evidence(x, prior, products, noise) + self._log_prior(modes)
                fits.append((log - _LESS * i, modes, x, prior))
        logs = np.array([fit[0] for fit in fits])
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        models = []
        for (_, modes, x, prior), weight in zip(fits, weights.tolist(), strict=True):
            if weight > _RARE:  # regress the differences on the modes
                precision = x.T @ (x / noise[:, None]) + np.eye(x.shape[1]) / prior
                covariance: Array = np.linalg.inv(precision).astype(float)
                mean = covariance @ (x.T @ (delta / noise[:, None]))
                models.append(_Model(modes, mean, covariance, weight))
        return models

    def _evidence(self, x: Array, prior: float, products: Array, noise: Array) -> float:
        """Return the log probability of the differences, up to a constant."""
        marginal = np.diag(noise) + prior * x @ x.T
        _, size = np.linalg.slogdet(marginal)
        misfit = float(np.trace(np.linalg.solve(marginal, products)))
        # The noise is summed over the coordinates, which share it equally.
        return -0.5 * self.dimensions * (float(size) + misfit)

    def _pairs(self) -> list[tuple[float, ...]]:
        highest = self.pilot.highest + 2
        if self.pilot.nested:
            return list(combinations([0.0, *(2.0**i for i in range(highest + 1))], 2))
        octaves = math.ceil(highest - math.log2(_FASTEST))
        times = [_FASTEST * 2.0 ** (i / _PER_OCTAVE) for i in range(octaves * _PER_OCTAVE + 1)]
        return list(combinations(times, 2))

    def _log_prior(self, modes: tuple[float, ...]) -> float:
        if self.pilot.nested:
            return -math.log(_HEAVIER) * math.log2(modes[-1])
        away = math.log(modes[-1] / self.time) / _FAR
        return -0.5 * away * away

    def _shape(self, modes: Sequence[float], levels: Sequence[int]) -> Array:
        """Return s_k(2^l), (levels, modes)."""
        p = 2.0 ** np.array(list(levels), dtype=float)[:, None]
        mode = np.array(modes)[None, :]
        if self.pilot.nested:
            return np.concatenate([p**-2.0, (1.0 + mode) / (p + mode)], 1)
        decaying = np.expm1(-p / mode) / np.expm1(-1.0 / mode) / p
        oscillating = (1.0 - (-_BACK) ** p) / (1.0 + _BACK) / p
        shape: Array = np.concatenate([oscillating, decaying], 1)
        return shape
