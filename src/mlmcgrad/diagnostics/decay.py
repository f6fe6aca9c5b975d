"""How bias and variance go on with the length, within a pilot and beyond it.

Means. With δ_l = E[H^{(2^l)} − H^{(2^{l−1})}] the bias of length 2^l is b_l = −Σ_{m>l} δ_m, of which a
pilot has the terms up to L. The rest is δ_L once more: b_l falls as 2^{−l} for a chain that has
forgotten its start and for self-normalised weights, so Σ_{m>L} δ_m = δ_L (Richardson). ‖b_l‖² is
estimated without the noise of its plug-in. Where it drowns in noise, it is continued from a shorter
length, if that is long enough for the rate 2^{−l}.

Variances of chains. The mean of p steps of a stationary autoregression with ρ = e^{−1/τ} has the
variance σ² v(p), see `average_variance`; τ is the one that fits the variances of H^{(p)} in the pilot.
As sums of p steps have the variance S(p) = σ² p² v(p), of a longer simulation

    Cov(H^{(p)}, H^{(q)}) = {S(p) + S(q) − S(q − p)} / (2 p q),     p ≤ q.

Variances of importance sampling. A simulation of 2^j blocks is 2^{j−L} independent ones of 2^L, so
covariances up to L are those of the pilot divided by it; the variance of D_l beyond L goes on
falling as it did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.diagnostics.pilot import Pilot

_CLEAR = 3.0  # standard errors from which on a difference counts as seen
_SLOW = 0.75  # mean differences that fall by less than this from level to level: not mixed
_OFF = 0.3  # by how much, relatively, a bias may be off that is taken for twice the next
_TIMES = 200  # autocorrelation times that are tried
_FASTEST, _SLOWEST = 0.2, 0.7  # by what the variance of D_l falls from level to level


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
class Decay:
    """Bias and covariances of simulations of any length, from a pilot."""

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

    def mean(self, level: int) -> Tensor:
        """δ_l, (d,), continued beyond the pilot."""
        last = self.differences[min(level, self.highest)][0]
        return last * 2.0 ** min(0, self.highest - level)

    @property
    def mixes(self) -> bool:
        """Whether mean differences fall at the end of the pilot, or cannot be seen any more."""
        if self.highest < 2:
            return True
        sizes = [self._squared({level: 1.0}) for level in (self.highest - 1, self.highest)]
        clear = all(s.value > _CLEAR * s.se for s in sizes)
        return not clear or sizes[1].value <= _SLOW**2 * sizes[0].value

    def bias(self, weights: dict[int, float]) -> Squared:
        """‖Σ_l a_l b_l‖² of the mean Σ_l a_l E[H^{(2^l)}], for weights a_l that sum to 1."""
        own, top = self._squared(self._combined(weights)), max(weights)
        found = [Squared(own.value, math.hypot(own.se, self._unknown(weights)))]
        if len(weights) == 1:  # a burn-in is not continued from shorter ones
            for level in range(self._forgotten, min(top, self.highest) + 1):
                shorter, scale = self._squared(self._combined({level: 1.0})), 4.0 ** (level - top)
                found.append(Squared(scale * shorter.value, scale * shorter.se))
        measured = min(found, key=lambda square: square.se)
        measured = Squared(max(0.0, measured.value), measured.se)
        return _weighed(measured, self._expected(weights), self._expected({top: 1.0}))

    def covariance(self, level: int) -> Tensor:
        """Σ_i Cov(D_l, D_m)_i of simulations of the length 2^level, (level + 1, level + 1)."""
        if level <= self.highest:
            return self._covariances[level]
        if self.pilot.nested:
            return self._groups(level)
        lengths = [2.0**i for i in range(level + 1)]
        sums = {p: p * p * average_variance(self.time, p) for p in lengths}
        h = torch.empty(level + 1, level + 1, dtype=torch.float64)
        for i, p in enumerate(lengths):
            for j, q in enumerate(lengths[i:], start=i):
                rest = (q - p) ** 2 * average_variance(self.time, q - p) if q > p else 0.0
                h[i, j] = h[j, i] = (sums[p] + sums[q] - rest) / (2.0 * p * q)
        scale = self._variances[-1] / average_variance(self.time, 2.0**self.highest)
        return scale * _of_differences(h)

    @cached_property
    def time(self) -> float:
        """τ, of the autoregression whose averages have the variances of the pilot."""
        if self._variances[0] <= 0.0:
            return 0.1

        # Chains that start at one point have little variance at first: from its largest value on.
        first = int(np.argmax(self._variances))
        if first == self.highest:  # it has not begun to fall
            return 2.0**self.highest
        levels = range(first, self.highest + 1)
        counts = [sum(len(g.estimates) for g in self.pilot.groups[level:]) for level in levels]

        def misfit(time: float) -> float:
            ratios = [
                math.log(max(self._variances[level], 1e-300) / average_variance(time, 2.0**level))
                for level in levels
            ]
            centre = np.average(ratios, weights=counts)
            return float(np.average((np.array(ratios) - centre) ** 2, weights=counts))

        return float(min(np.geomspace(0.1, 4.0 * 2**self.highest, _TIMES), key=misfit))

    @cached_property
    def _covariances(self) -> list[Tensor]:
        return [self.pilot.covariance(level) for level in range(self.highest + 1)]

    @cached_property
    def _variances(self) -> list[float]:
        """Of H^{(2^l)}: that of the sum of all differences up to l."""
        return [float(covariance.sum()) for covariance in self._covariances]

    @property
    def _forgotten(self) -> int:
        """The level from which on the bias falls as 2^{−l}."""
        return 0 if self.pilot.nested else math.ceil(math.log2(max(1.0, 2.0 * self.time)))

    def _unknown(self, weights: dict[int, float]) -> float:
        """How far off ‖bias‖² may be because the differences after the last are not its halves."""
        last = self._squared({self.highest: 1.0}).cautious
        if 4.0 * self.time > 2.0**self.highest and not self.pilot.nested:
            # They have not begun to fall: there may be as much as the start is away.
            last = max(last, self._variances[0])
        share = math.fsum(a * 2.0 ** min(0, self.highest - l) for l, a in weights.items())
        most = max(abs(a) * 2.0 ** min(0, self.highest - l) for l, a in weights.items())
        return last * max(share * share, (_OFF * most) ** 2)

    def _expected(self, weights: dict[int, float]) -> float:
        """‖bias‖² of a start that is one standard deviation of H away from where it should be."""
        rho = math.exp(-1.0 / self.time)

        def shape(p: float) -> float:
            return 1.0 / p if self.pilot.nested else (1.0 - rho**p) / (p * (1.0 - rho))

        size = math.fsum(a * shape(2.0**level) for level, a in weights.items())
        return self._variances[0] * size * size

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

    def _combined(self, weights: dict[int, float]) -> dict[int, float]:
        """−Σ_l a_l b_l as a combination of differences."""
        found = dict.fromkeys(range(self.highest + 1), 0.0)
        for level, a in weights.items():
            for m in range(level + 1, self.highest + 1):
                found[m] += a
            found[self.highest] += a * 2.0 ** min(0, self.highest - level)
        return found

    def _squared(self, terms: dict[int, float]) -> Squared:
        mean = torch.zeros_like(self.differences[0][0])
        noise = torch.zeros_like(self.differences[0][1])
        for level, factor in terms.items():
            mean = mean + factor * self.differences[level][0]
            noise = noise + factor**2 * self.differences[level][1]
        spread = float(4.0 * mean @ noise @ mean + 2.0 * (noise @ noise).trace())
        return Squared(float(mean @ mean - noise.trace()), math.sqrt(spread))


def _weighed(measured: Squared, expected: float, spread: float) -> Squared:
    """What was measured, and what one expects before: the more the noisier the measurement is."""
    if spread <= 0.0 or measured.se <= 0.0:
        return measured
    share = spread**2 / (spread**2 + measured.se**2)
    value = share * measured.value + (1.0 - share) * expected
    return Squared(value, math.sqrt(share) * measured.se)


def average_variance(time: float, p: float) -> float:
    """v(p): variance of the mean of p steps with ρ = e^{−1/time}, over that of one step."""
    rho = math.exp(-1.0 / time)
    return ((1.0 + rho) / (1.0 - rho) - 2.0 * rho * (1.0 - rho**p) / (p * (1.0 - rho) ** 2)) / p


def _of_differences(h: Tensor) -> Tensor:
    """Covariances of D_l from those of H^{(2^l)}."""
    change = torch.eye(len(h), dtype=torch.float64)
    change -= torch.diag(torch.ones(len(h) - 1, dtype=torch.float64), -1)
    return change @ h @ change.T
