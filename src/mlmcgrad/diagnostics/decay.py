"""How variances go on with the length, within a pilot and beyond it; the bias is in `approach.py`.

Chains. The mean of p steps of a stationary autoregression with ρ = e^{−1/τ} has the variance
σ² v(p), see `average_variance`; τ is the one that fits the variances of H^{(p)} at the end of the
pilot. Beyond it, both halves of a chain have the same law, so that with r = v(2p)/v(p), close to
1/2,

    Var(H^{(2p)}) = r Var(H^{(p)}),     Cov(H^{(2p)} − H^{(p)}, ·) = −(1 − r) Cov(H^{(p)}, ·)

for everything in its first half.

Importance sampling. A simulation of 2^j blocks is 2^{j−L} independent ones of 2^L, so covariances
up to L are those of the pilot divided by it; the variance of D_l beyond L goes on falling as it
did.
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

_LONG = 16.0  # autocorrelation times that a pilot must last to be sure of them
_SMALL = 0.1  # share of the largest weight
_SOME = 4.0  # autocorrelation times of an average whose variance is that of the autoregression
_SHORTEST = 5  # level of a pilot that can tell slow chains from fast ones
_PLATEAU = 0.7  # variances that fall by less from level to level have not begun to
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

    def products(self, level: int) -> Tensor:
        """Mean over the rows of Σ_i E[D_l]_i E[D_m]_i, (level + 1, level + 1).

        Beyond the pilot means are halved from level to level.
        """
        known = self._products
        place = [min(m, self.highest) for m in range(level + 1)]
        scale = torch.tensor([2.0 ** min(0, self.highest - m) for m in range(level + 1)]).double()
        return known[place][:, place] * scale * scale[:, None]

    def mean_square(self, level: int) -> float:
        """‖E[H^{(2^level)}]‖², at least 0; beyond the pilot that of its longest simulations."""
        return max(0.0, self.pilot.mean_square(min(level, self.highest)))

    def left(self, level: int) -> float:
        """‖E[H^{(2^level)}]‖² less its standard error, at least 0: as far as it is sure.

        Of simulations that are too few to have every row of the data in them, a shorter length is
        taken: rows differ more than lengths do.
        """
        pilot = self.pilot
        level = max(m for m in range(min(level, self.highest) + 1) if m == 0 or pilot.covers(m))
        square, noise = self.mean_square(level), self._variances[level] / pilot.count(level)
        # Of a mean m + noise with d coordinates alike: Var ‖·‖² = 4 m² noise / d + 2 noise² / d.
        error = math.sqrt((4.0 * square * noise + 2.0 * noise**2) / self.approach.dimensions)
        return max(0.0, square - error)

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
        """Whether the longest simulations are many times τ, or no weight of theirs is large."""
        if self.pilot.nested:
            return self.pilot.largest <= _SMALL
        return 2.0**self.highest >= max(2.0**_SHORTEST, _LONG * self.time)

    def variance_error(self, level: int) -> float:
        """Relative standard error of the variance of H^{(2^level)}, or of the pilot's longest."""
        squares = self.pilot.squares(min(level, self.highest))
        return float(squares.std() / squares.mean().clamp(min=1e-300)) / math.sqrt(len(squares))

    @property
    def _scale(self) -> float:
        """σ², of the autoregression."""
        return self._autoregression[1]

    @cached_property
    def _first(self) -> int:
        """The level from which on variances fall; from one start they may grow before."""
        flat = 0
        for level in range(1, self.highest + 1):
            least = 1.0 - 1.5 * math.sqrt(2.0 / self.pilot.count(level))  # noise of a variance
            if self._variances[level] * least > _PLATEAU * self._variances[level - 1]:
                flat = level
        return flat

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
    def _products(self) -> Tensor:
        return self.pilot.products(self.highest)

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
        for top, covariance in enumerate(self._covariances):  # each from all that are long enough
            found[top, : top + 1] = covariance[top]
            found[: top + 1, top] = covariance[top]
        # The variance of the longest is known best from the autoregression.
        end = self._scale * average_variance(self.time, 2.0**self.highest)
        found[known - 1, known - 1] += end - float(found.sum())
        for beyond in range(known, level + 1):
            ratio = average_variance(self.time, 2.0**beyond)
            ratio /= average_variance(self.time, 2.0 ** (beyond - 1))
            new = -(1.0 - ratio) * found[:beyond, :beyond].sum(1)
            found[beyond, :beyond] = found[:beyond, beyond] = new
            found[beyond, beyond] = -float(new.sum())
        # Put together from several samples, it may have eigenvalues below 0.
        values, vectors = torch.linalg.eigh(found)
        return vectors @ torch.diag(values.clamp(min=0.0)) @ vectors.T

    def average_variance(self, length: int, burn_in: int) -> float | None:
        """Variance of an average of long chains by the autoregression, of others None.

        It is less noisy than the variance of the pilot's chains of one length.
        """
        long = self.long_enough and length >= _SOME * self.time
        if self.pilot.nested or not (long or burn_in + length > 2**self.highest):
            return None
        return self._scale * average_variance(self.time, float(length))

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
