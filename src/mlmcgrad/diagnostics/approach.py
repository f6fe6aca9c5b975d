"""How E[H^{(p)}] approaches its limit, within a pilot and beyond it.

Of a chain, E[H(X_t)] − lim = Σ_k A_k e^{−(t−1)/τ_k}: a fast mode, a slow one, and one that goes
back and forth are enough, with unknown vectors A_k and times τ_k. So the bias of length p is

    b(p) = Σ_k A_k s_k(p),     s_k(p) = (1/p) Σ_{t≤p} e^{−(t−1)/τ_k},

and that of importance sampling has s_k(p) = (1 + τ_k)/(p + τ_k), which falls as 1/p once there are
enough draws for its weights, and p^{−2}. A pilot measures the differences δ_l = b(2^l) − b(2^{l−1})
with noise.
For each pair of times on a grid, A is a linear regression with a normal prior: a start is about a
standard deviation of H away from the limit, importance sampling a fifth of one, or less: of many
coordinates few may be biased. The evidence weighs these scales and the pairs, together with a prior
that expects the slow time to be near that of the autocovariances. A bias is what this posterior
law says: its mean square, and how far off that may be. Where the noise hides everything it falls
back on the prior; a pilot that is too short leaves long times possible, and with them a large bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from mlmcgrad.diagnostics.pilot import Pilot

Array = NDArray[np.float64]

_PER_OCTAVE = 2  # times on the grid
_FASTEST = 0.25  # steps
_OFF = 0.1  # relative error of a difference because there are more modes than that
_REST = 0.02  # the same where there is no data, for what a burn-in leaves
_TAIL = 6  # levels beyond the longest that matter to that
_BACK = 0.5  # minus the eigenvalue of a mode that goes back and forth
_FAR = 0.6  # standard deviation of the slow time about that of the autocovariances, in logarithms
_SCALES = 6  # of the prior, each a quarter of the one before
_LESS = 1.5  # how much less likely each is, in logarithms: caution, where there is little to see
_RARE = 1e-4  # probability of models that are left out
_HEAVIER = 1.3  # how much less likely the next longer time of importance sampling is
_CLOSE = 0.2  # standard deviations of H that the start of importance sampling is away, before


@dataclass(frozen=True)
class Squared:
    """A squared bias and its standard error."""

    value: float
    se: float

    @property
    def cautious(self) -> float:
        """A number that it is probably below."""
        return max(0.0, self.value) + self.se


@dataclass(frozen=True)
class _Model:
    """Two modes, and the posterior law of their vectors."""

    modes: tuple[float, ...]  # τ, the slow one last
    mean: Array  # (modes, d)
    covariance: Array  # (modes, modes), summed over coordinates
    weight: float


@dataclass(frozen=True)
class Approach:
    """The posterior law of the bias, from a pilot.

    Attributes:
        pilot: what was measured.
        scale: variance of H(X) in the limit, the sum over coordinates.
        time: autocorrelation time; not used for importance sampling.
    """

    pilot: Pilot
    scale: float
    time: float

    def bias(self, weights: dict[int, float]) -> Squared:
        """‖Σ_l a_l b(2^l)‖², for the mean Σ_l a_l E[H^{(2^l)}] with weights a_l that sum to 1."""
        key = tuple(sorted(weights.items()))
        if key not in self._known:
            found, rest = self._posterior(weights), self._rest(weights)
            self._known[key] = Squared(found.value + rest, math.hypot(found.se, rest))
        return self._known[key]

    def _rest(self, weights: dict[int, float]) -> float:
        """What modes that are not in the model may add: b = −Σ_m (Σ_{l<m} a_l) δ_m."""
        found = []
        for m in range(min(weights) + 1, max(weights) + _TAIL):
            a = math.fsum(x for level, x in weights.items() if level < m)
            if m not in self._sizes:
                self._sizes[m] = self._posterior({m: 1.0, m - 1: -1.0}).value
            found.append(a * a * self._sizes[m])
        return _REST**2 * math.fsum(found)

    @cached_property
    def _sizes(self) -> dict[int, float]:
        """‖δ_m‖² by level."""
        return {}

    def _posterior(self, weights: dict[int, float]) -> Squared:
        models, a = self._models, np.array(list(weights.values()))
        shapes = np.stack([self._shape(m.modes, list(weights)) for m in models])  # (models, l, k)
        c = np.einsum("l,mlk->mk", a, shapes)
        square = (np.einsum("mk,mkd->md", c, np.stack([m.mean for m in models])) ** 2).sum(1)
        spread = np.einsum("mk,mkj,mj->m", c, np.stack([m.covariance for m in models]), c)
        probability = np.array([m.weight for m in models])
        variance = (4.0 * square * spread + 2.0 * spread**2) / self.dimensions
        first = float(probability @ (square + spread))
        second = float(probability @ (variance + (square + spread) ** 2))
        return Squared(first, math.sqrt(max(0.0, second - first * first)))

    @cached_property
    def _known(self) -> dict[tuple[tuple[int, float], ...], Squared]:
        return {}

    @property
    def slow(self) -> float:
        """Posterior probability that a mode takes longer than half the longest simulations."""
        return math.fsum(
            m.weight for m in self._models if m.modes[-1] > 2.0 ** (self.pilot.highest - 1)
        )

    @cached_property
    def dimensions(self) -> float:
        """Independent coordinates that the noise is worth."""
        x = self.pilot.difference(min(1, self.pilot.highest))
        c = x - x.mean(0)
        c = (c.T @ c).double()
        square = float((c * c).sum())
        return max(1.0, float(c.trace()) ** 2 / square) if square > 0.0 else 1.0

    @cached_property
    def _models(self) -> list[_Model]:
        levels = range(1, self.pilot.highest + 1)
        delta, noise = [], []
        for level in levels:
            mean, error = self.pilot.mean(level)
            delta.append(mean.numpy())
            noise.append(error)
        d = np.stack(delta) if delta else np.zeros((0, self.pilot.dimension))
        n = np.array(noise) + _OFF**2 * (d * d).sum(1) + 1e-12 * self.scale + 1e-300
        products = d @ d.T  # all that the evidence needs of the coordinates
        fits = [
            (
                self._evidence(x, prior, products, n) + self._log_prior(modes) - _LESS * i,
                modes,
                x,
                prior,
            )
            for modes in self._pairs()
            for x in [np.diff(self._shape(modes, range(self.pilot.highest + 1)), axis=0)]
            for i, prior in enumerate(self._priors)
        ]
        logs = np.array([fit[0] for fit in fits])
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        return [
            self._fit(modes, x, prior, d, n, float(weight))
            for (_, modes, x, prior), weight in zip(fits, weights, strict=True)
            if weight > _RARE
        ]

    @property
    def _priors(self) -> list[float]:
        """Variances of A, summed over the coordinates: of many, few may be biased."""
        largest = max(self.scale, 1e-300) * (_CLOSE**2 if self.pilot.nested else 1.0) / 3.0
        return [largest * 4.0**-i for i in range(_SCALES)]

    def _evidence(self, x: Array, prior: float, products: Array, noise: Array) -> float:
        """Logarithm of the probability of the differences, but for a constant."""
        marginal = np.diag(noise) + prior * x @ x.T
        _, size = np.linalg.slogdet(marginal)
        misfit = float(np.trace(np.linalg.solve(marginal, products)))
        # The trace of the noise is spread over the coordinates: each has its share.
        return -0.5 * self.dimensions * (float(size) + misfit)

    def _fit(
        self,
        modes: tuple[float, ...],
        x: Array,
        prior: float,
        delta: Array,
        noise: Array,
        weight: float,
    ) -> _Model:
        """Regression on the modes."""
        precision = x.T @ (x / noise[:, None]) + np.eye(x.shape[1]) / prior
        covariance: Array = np.linalg.inv(precision).astype(float)
        return _Model(modes, covariance @ (x.T @ (delta / noise[:, None])), covariance, weight)

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
        """s_k(2^l), (levels, modes)."""
        p = 2.0 ** np.array(list(levels), dtype=float)[:, None]
        mode = np.array(modes)[None, :]
        if self.pilot.nested:
            return np.concatenate([p**-2.0, (1.0 + mode) / (p + mode)], 1)
        decaying = np.expm1(-p / mode) / np.expm1(-1.0 / mode) / p
        oscillating = (1.0 - (-_BACK) ** p) / (1.0 + _BACK) / p
        found: Array = np.concatenate([oscillating, decaying], 1)
        return found
