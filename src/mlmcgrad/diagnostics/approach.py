"""How E[H^{(p)}] approaches its limit, within a pilot and beyond it.

Of a chain, E[H(X_t)] − lim = Σ_k A_k e^{−(t−1)/τ_k}: a fast and a slow mode are enough, with unknown
vectors A_k and times τ_k. So the bias of length p is

    b(p) = Σ_k A_k s_k(p),     s_k(p) = (1/p) Σ_{t≤p} e^{−(t−1)/τ_k},

and that of importance sampling p^{−α_k} in place of s_k, with α = 1 for weights that are mild, and
less for those that are not. A pilot measures the differences δ_l = b(2^l) − b(2^{l−1}) with noise.
For each pair of times on a grid, A is a linear regression with a normal prior (a start is about
a standard deviation of H away from the limit), and the evidence weighs the pairs, together with a
prior that expects the slow time to be near that of the autocovariances. A bias is what this
posterior law says: its mean square, and how far off that may be. Where the noise hides everything
it falls back on the prior; a pilot that is too short leaves long times possible, and with them a
large bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from mlmcgrad.diagnostics.pilot import Pilot

Array = NDArray[np.float64]

_PER_OCTAVE = 2  # times on the grid
_FASTEST = 0.25  # steps
_OFF = 0.1  # relative error of a difference because there are more modes than that
_BACK = 0.5  # minus the eigenvalue of a mode that goes back and forth
_FAR = 0.6  # standard deviation of the slow time about that of the autocovariances, in logarithms
_POWERS = (0.25, 0.5, 0.75, 1.0, 2.0)  # α, for importance sampling
_MILD = 4.0  # how much likelier α = 1 and 2 are than the others, before anything is measured


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

    modes: tuple[float, ...]  # τ or α, the slow one last
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
        first = second = 0.0
        for model in self._models:
            c = sum(
                (a * self._shape(model.modes, [level])[0] for level, a in weights.items()),
                np.zeros(len(model.mean)),
            )
            square = float(((c @ model.mean) ** 2).sum())
            spread = float(c @ model.covariance @ c)
            here = square + spread
            variance = (4.0 * square * spread + 2.0 * spread * spread) / self._dimensions
            first += model.weight * here
            second += model.weight * (variance + here * here)
        return Squared(first, math.sqrt(max(0.0, second - first * first)))

    @property
    def slow(self) -> float:
        """Posterior probability that a mode takes longer than half the longest simulations."""
        if self.pilot.nested:
            return 0.0
        return math.fsum(
            m.weight for m in self._models if m.modes[-1] > 2.0 ** (self.pilot.highest - 1)
        )

    @cached_property
    def _dimensions(self) -> float:
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
            x = self.pilot.difference(level)
            delta.append(x.mean(0).numpy())
            noise.append(float(x.var(0).sum()) / len(x))
        d = np.stack(delta) if delta else np.zeros((0, self.pilot.dimension))
        n = np.array(noise) + _OFF**2 * (d * d).sum(1) + 1e-12 * self.scale + 1e-300
        found = [self._fit(modes, d, n) for modes in self._pairs()]
        logs = np.array([log for _, log in found])
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        return [
            _Model(model.modes, model.mean, model.covariance, float(weight))
            for (model, _), weight in zip(found, weights, strict=True)
            if weight > 1e-6
        ]

    def _fit(self, modes: tuple[float, ...], delta: Array, noise: Array) -> tuple[_Model, float]:
        """Regression on two modes, and the logarithm of its evidence times the prior."""
        shape = self._shape(modes, range(self.pilot.highest + 1))
        x = np.diff(shape, axis=0)
        prior = max(self.scale, 1e-300) / x.shape[1]
        precision = x.T @ (x / noise[:, None]) + np.eye(x.shape[1]) / prior
        covariance = np.linalg.inv(precision)
        mean = covariance @ (x.T @ (delta / noise[:, None]))
        marginal = np.diag(noise) + prior * x @ x.T
        _, size = np.linalg.slogdet(marginal)
        misfit = float((delta * np.linalg.solve(marginal, delta)).sum())
        # The trace of the noise is spread over the coordinates: each has its share.
        log = -0.5 * self._dimensions * (float(size) + misfit) + self._log_prior(modes)
        return _Model(modes, mean, covariance, 0.0), log

    def _pairs(self) -> list[tuple[float, ...]]:
        if self.pilot.nested:
            return [(b, a) for a, b in combinations(_POWERS, 2)]
        highest = self.pilot.highest + 2
        octaves = math.ceil(highest - math.log2(_FASTEST))
        times = [_FASTEST * 2.0 ** (i / _PER_OCTAVE) for i in range(octaves * _PER_OCTAVE + 1)]
        return list(combinations(times, 2))

    def _log_prior(self, modes: tuple[float, ...]) -> float:
        if self.pilot.nested:
            return math.log(_MILD) if modes[-1] == 1.0 else 0.0
        away = math.log(modes[-1] / self.time) / _FAR
        return -0.5 * away * away

    def _shape(self, modes: Sequence[float], levels: Sequence[int]) -> Array:
        """s_k(2^l), (levels, modes)."""
        p = 2.0 ** np.array(list(levels), dtype=float)[:, None]
        mode = np.array(modes)[None, :]
        if self.pilot.nested:
            return p**-mode
        decaying = np.expm1(-p / mode) / np.expm1(-1.0 / mode) / p
        oscillating = (1.0 - (-_BACK) ** p) / (1.0 + _BACK) / p
        found: Array = np.concatenate([oscillating, decaying], 1)
        return found
