"""How variances go on with the length, within a pilot and beyond it; the bias is in `approach.py`.

Chains. The mean of p steps of a stationary autoregression with ρ = e^{−1/τ} has the variance σ² v(p),
see `average_variance`; τ is the one that fits the variances of H^{(p)} at the end of the pilot. Beyond
it the variance of D_l = H^{(2^l)} − H^{(2^{l−1})} goes on as it does for that autoregression, and D_l is
uncorrelated with those before, as it is for a chain that is much longer than τ.

Importance sampling. A simulation of 2^j blocks is 2^{j−L} independent ones of 2^L, so covariances up
to L are those of the pilot divided by it; the variance of D_l beyond L goes on falling as it did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad.diagnostics.approach import Approach, Squared
from mlmcgrad.diagnostics.pilot import Pilot

_LONG = 8.0  # autocorrelation times that a pilot must last to be sure of them
_PLATEAU = 0.85  # variances that fall by less from level to level have not begun to
_TIMES = 200  # autocorrelation times that are tried
_FASTEST, _SLOWEST = 0.2, 0.7  # by what the variance of D_l falls, for importance sampling
_UNMIXED = 0.5  # probability of a time that is too long for the pilot


@dataclass(frozen=True)
class Decay:
    """Bias and covariances of simulations of any length, from a pilot."""

    pilot: Pilot

    @property
    def highest(self) -> int:
        """L, of the pilot."""
        return self.pilot.highest

    def mean(self, level: int) -> Tensor:
        """δ_l, (d,), continued beyond the pilot."""
        last = self._means[min(level, self.highest)]
        return last * 2.0 ** min(0, self.highest - level)

    @property
    def mixes(self) -> bool:
        """Whether the longest simulations are probably longer than what the chain remembers."""
        return self.approach.slow < _UNMIXED

    def bias(self, weights: dict[int, float]) -> Squared:
        """See `Approach.bias`."""
        return self.approach.bias(weights)

    @cached_property
    def approach(self) -> Approach:
        """The law of the bias."""
        scale = max(self._variances[0], self._scale)
        return Approach(self.pilot, scale, self.time)

    def covariance(self, level: int) -> Tensor:
        """Σ_i Cov(D_l, D_m)_i of simulations of the length 2^level, (level + 1, level + 1)."""
        if level <= self.highest:
            return self._covariances[level]
        if level not in self._beyond:
            self._beyond[level] = self._groups(level) if self.pilot.nested else self._chain(level)
        return self._beyond[level]

    @property
    def time(self) -> float:
        """τ, of the autoregression whose averages have the variances of the pilot."""
        return self._autoregression[0]

    @property
    def long_enough(self) -> bool:
        """Whether the longest simulations of the pilot are some times τ."""
        return self.pilot.nested or 2.0**self.highest >= _LONG * self.time

    @property
    def variance_error(self) -> float:
        """Relative standard error of the variances of long simulations."""
        level = self.highest if self.pilot.nested else self._first
        alike = self.pilot.groups[level : level + 1] if self.pilot.nested else self.pilot.groups
        h = torch.cat([g.estimates[:, level] for g in alike if g.estimates.shape[1] > level])
        squares = (h - h.mean(0)).square().sum(1)
        return float(squares.std() / squares.mean().clamp(min=1e-300)) / math.sqrt(len(h))

    @property
    def _scale(self) -> float:
        """σ², of the autoregression."""
        return self._autoregression[1]

    @cached_property
    def _first(self) -> int:
        """The level from which on variances fall; from one start they may grow before."""
        ratios = [b > _PLATEAU * a for a, b in zip(self._variances, self._variances[1:])]
        return max((level for level, flat in enumerate(ratios, start=1) if flat), default=0)

    @cached_property
    def _autoregression(self) -> tuple[float, float]:
        """τ and σ² by weighted least squares in the logarithms of variances."""
        first = self._first
        if self._variances[first] <= 0.0:  # constant
            return 0.1, 0.0
        if first == self.highest > 0:  # they have not begun to fall
            time = 2.0**self.highest
            return time, self._variances[first] / average_variance(time, time)
        levels = range(first, self.highest + 1)
        counts = [self.pilot.count(level) for level in levels]

        def ratios(time: float) -> NDArray[np.float64]:
            model = [average_variance(time, 2.0**level) for level in levels]
            seen = [max(self._variances[level], 1e-300) for level in levels]
            return np.log(np.array(seen) / np.array(model))

        def misfit(time: float) -> float:
            left = ratios(time)
            return float(np.average((left - np.average(left, weights=counts)) ** 2, weights=counts))

        time = float(min(np.geomspace(0.1, 4.0 * 2**self.highest, _TIMES), key=misfit))
        return time, math.exp(np.average(ratios(time), weights=counts))

    @cached_property
    def _means(self) -> list[Tensor]:
        return [self.pilot.difference(level).mean(0) for level in range(self.highest + 1)]

    @cached_property
    def _beyond(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def _covariances(self) -> list[Tensor]:
        return [self.pilot.covariance(level) for level in range(self.highest + 1)]

    @cached_property
    def _variances(self) -> list[float]:
        """Of H^{(2^l)}: that of the sum of all differences up to l."""
        return [float(covariance.sum()) for covariance in self._covariances]

    def _chain(self, level: int) -> Tensor:
        found = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        known = self.highest + 1
        found[:known, :known] = self._covariances[-1]
        for beyond in range(known, level + 1):
            found[beyond, beyond] = self._scale * difference_variance(self.time, 2.0**beyond)
        return found

    def _groups(self, level: int) -> Tensor:
        found = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        known = self.highest + 1
        found[:known, :known] = self._covariances[-1] * 2.0 ** (self.highest - level)
        own = [float(self._covariances[m][m, m]) for m in range(known)]  # in its own simulation
        factor = 0.5
        if known > 2 and own[-2] > 0.0:
            factor = min(_SLOWEST, max(_FASTEST, own[-1] / own[-2]))
        for beyond in range(known, level + 1):
            alone = own[-1] * factor ** (beyond - self.highest)
            found[beyond, beyond] = alone * 2.0 ** (beyond - level)
        return found


def average_variance(time: float, p: float) -> float:
    """v(p): variance of the mean of p steps with ρ = e^{−1/time}, over that of one step."""
    rho = math.exp(-1.0 / time)
    return ((1.0 + rho) / (1.0 - rho) - 2.0 * rho * (1.0 - rho**p) / (p * (1.0 - rho) ** 2)) / p


def difference_variance(time: float, p: float) -> float:
    """Variance of the mean of p steps minus that of the first p/2, over that of one step.

    It is half the difference of the means of both halves.
    """
    return average_variance(time, p / 2.0) - average_variance(time, p)
