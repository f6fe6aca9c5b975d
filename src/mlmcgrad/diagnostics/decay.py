"""How the bias falls with the length, within a pilot and beyond it.

A bias that is worth removing is often smaller than the noise of a pilot. So its shape is taken from
what is known of such simulations, and only its size and direction from the measured means:

    E[H^{(p)}] − E[H^{(∞)}] = b · g(p),     g(1) = 1.

A chain that forgets at the rate ρ has g(p) = (1 − ρ^p) / (p (1 − ρ)), an average over p steps of ρ^i;
importance sampling has g(p) = p^{−a}, with a = 1 for mild weights and less for heavy ones. The
differences δ_l = E[H^{(2^l)} − H^{(2^{l−1})}] = b {g(2^l) − g(2^{l−1})} give b by weighted least
squares, and the shape is the one that fits them best. Where the pilot is too small to tell, it is
the one with the autocorrelation that the variances of H^{(p)} show, which are known far better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad.diagnostics.pilot import Pilot

Shape: TypeAlias = Callable[[float], float]

_CLEAR = 3.0  # standard errors from which on a number counts as seen
_CHOICES = 64  # shapes that are tried
_PRIOR = 1.0  # weight of the shape that the variances suggest, in squared standard errors
_LEAST_FACTOR, _MOST_FACTOR = 0.2, 1.0


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
class Fitted:
    """A shape, and the bias of length 1 that fits it best."""

    time: float  # ρ = e^{−1/time}; for importance sampling the exponent a
    mean: Tensor  # b, (d,)
    noise: Tensor  # covariance of b, (d, d)
    misfit: float  # Σ ‖residual‖² / variance, over levels


@dataclass(frozen=True)
class Decay:
    """Bias and differences of all levels of a pilot."""

    pilot: Pilot

    @property
    def highest(self) -> int:
        """L, of the pilot."""
        return self.pilot.highest

    @cached_property
    def differences(self) -> list[tuple[Tensor, Tensor]]:
        """Of each level the mean δ_l, (d,), and the covariance of that mean, (d, d)."""
        found = []
        for level in range(self.highest + 1):
            x = self.pilot.difference(level)
            centred = x - x.mean(0)
            found.append((x.mean(0), centred.T @ centred / (len(x) - 1) / len(x)))
        return found

    @cached_property
    def fitted(self) -> Fitted:
        """The shape that fits the means best, and what it gives."""
        suggested = self._suggested
        fits = [self._fit(time) for time in self._times]
        # A change of the scale of time by e costs as much as a misfit of one standard error.
        return min(
            fits, key=lambda f: f.misfit + _PRIOR * math.log(f.time / suggested) ** 2
        )

    @property
    def time(self) -> float:
        """Steps in which the bias falls by e; the exponent a of importance sampling."""
        return self.fitted.time

    @property
    def mixes(self) -> bool:
        """Whether the chain forgets its start well within the pilot."""
        return self.pilot.nested or self.time <= 2.0 ** (self.highest - 1)

    def bias(self, length: float, after: float = 0.0) -> Squared:
        """‖bias‖² of an average over `length` steps after so many others."""
        whole = self._shape(self.time)
        factor = whole(length + after) * (length + after) - (whole(after) * after if after else 0.0)
        return self._squared(factor / length)

    def covariance(self, level: int) -> Tensor:
        """Σ_i Cov(D_l, D_m)_i of simulations of the length 2^level, (level + 1, level + 1).

        Beyond the pilot differences are as good as uncorrelated, and their variance goes on as
        between its last levels.
        """
        known = min(level, self.highest)
        found = torch.zeros(level + 1, level + 1, dtype=torch.float64)
        found[: known + 1, : known + 1] = self._covariances[known]
        for beyond in range(known + 1, level + 1):
            found[beyond, beyond] = self.variance_factor * found[beyond - 1, beyond - 1]
        return found

    def mean(self, level: int) -> Tensor:
        """δ_l of the fit, and H^{(1)} at level 0, (d,)."""
        if level == 0:
            return self.differences[0][0]
        g = self._shape(self.time)
        return (g(2.0**level) - g(2.0 ** (level - 1))) * self.fitted.mean

    @cached_property
    def variance_factor(self) -> float:
        """By what the variance of D_l falls from level to level at the end of the pilot."""
        sizes = [size for size in self._covariances[-1].diagonal()[1:].tolist()[-3:] if size > 0.0]
        if len(sizes) < 2:
            return 0.5
        factor = (sizes[-1] / sizes[0]) ** (1.0 / (len(sizes) - 1))
        return min(_MOST_FACTOR, max(_LEAST_FACTOR, factor))

    @cached_property
    def _covariances(self) -> list[Tensor]:
        return [self.pilot.covariance(level) for level in range(self.highest + 1)]

    @property
    def _times(self) -> NDArray[np.float64]:
        if self.pilot.nested:
            return np.linspace(0.2, 1.2, _CHOICES)
        return np.geomspace(0.1, 4.0 * 2**self.highest, _CHOICES)

    def _shape(self, time: float) -> Shape:
        if self.pilot.nested:
            return lambda p: p**-time
        rho = math.exp(-1.0 / time)
        return lambda p: (1.0 - rho**p) / (p * (1.0 - rho))

    @cached_property
    def _suggested(self) -> float:
        """The time of an autoregression whose averages have the variances of the pilot."""
        if self.pilot.nested:
            return 1.0
        variances = [
            float(self._covariances[level].sum()) for level in range(self.highest + 1)
        ]  # of H^{(2^l)}: the sum of all differences
        if variances[0] <= 0.0:
            return 1.0
        lengths = [2.0**level for level in range(self.highest + 1)]

        def misfit(time: float) -> float:
            ratios = (
                math.log(max(v, 1e-300) / variances[0] / average_variance(time, p))
                for v, p in zip(variances, lengths, strict=True)
            )
            return sum(r * r for r in ratios)

        return float(min(self._times, key=misfit))

    def _fit(self, time: float) -> Fitted:
        g = self._shape(time)
        mean, noise = torch.zeros_like(self.differences[0][0]), torch.zeros_like(
            self.differences[0][1]
        )
        total, terms = 0.0, []
        for level in range(1, self.highest + 1):
            slope = g(2.0**level) - g(2.0 ** (level - 1))
            delta, covariance = self.differences[level]
            weight = 1.0 / max(float(covariance.trace()), 1e-300)
            terms.append((slope, delta, covariance, weight))
            total += weight * slope * slope
        if total == 0.0:
            return Fitted(time, mean, noise, 0.0)
        for slope, delta, covariance, weight in terms:
            mean = mean + weight * slope / total * delta
            noise = noise + (weight * slope / total) ** 2 * covariance
        misfit = sum(
            weight * float((delta - slope * mean).square().sum())
            for slope, delta, _, weight in terms
        )
        # In units in which one level adds as much as one coordinate does.
        return Fitted(time, mean, noise, misfit)

    def _squared(self, factor: float) -> Squared:
        mean, noise = factor * self.fitted.mean, factor**2 * self.fitted.noise
        spread = float(4.0 * mean @ noise @ mean + 2.0 * (noise @ noise).trace())
        return Squared(max(0.0, float(mean @ mean - noise.trace())), math.sqrt(spread))


def average_variance(time: float, p: float) -> float:
    """Variance of the mean of p steps of an autoregression with ρ = e^{−1/time}, over that of one."""
    rho = math.exp(-1.0 / time)
    return ((1.0 + rho) / (1.0 - rho) - 2.0 * rho * (1.0 - rho**p) / (p * (1.0 - rho) ** 2)) / p
