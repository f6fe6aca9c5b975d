"""How bias and level differences fall with the length, within a pilot and beyond it.

With δ_l = E[H^{(2^l)} − H^{(2^{l−1})}], the bias of length 2^l is

    b_l = E[H^{(2^l)}] − E[H^{(∞)}] = −Σ_{m>l} δ_m,

of which the pilot has the terms up to L. The rest is δ_L once more: for a chain that has forgotten
its start, and for self-normalised weights, b_l falls as 2^{−l}, so Σ_{m>L} δ_m = δ_L (Richardson).
‖b_l‖² is estimated without the noise of its plug-in, as in `ladder.py`; beyond the last level at
which it stands out from the noise it is continued by a factor of 4 a level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mlmcgrad.diagnostics.pilot import Pilot

_CLEAR = 2.0  # standard errors from which on a squared bias counts as seen
_SLOW = 0.75  # a mean difference that falls by less than this a level has not begun to fall as 1/p
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
class Decay:
    """Bias and differences of all levels of a pilot."""

    pilot: Pilot

    @cached_property
    def differences(self) -> list[tuple[Tensor, Tensor]]:
        """Of each level the mean δ_l, (d,), and the covariance of that mean, (d, d)."""
        found = []
        for level in range(self.pilot.highest + 1):
            x = self.pilot.difference(level)
            centred = x - x.mean(0)
            found.append((x.mean(0), centred.T @ centred / (len(x) - 1) / len(x)))
        return found

    @property
    def highest(self) -> int:
        """L, of the pilot."""
        return self.pilot.highest

    @cached_property
    def limit(self) -> Tensor:
        """What the estimate tends to, (d,)."""
        return sum((mean for mean, _ in self.differences), self.differences[-1][0])

    @cached_property
    def squares(self) -> list[Squared]:
        """‖b_l‖² of the levels of the pilot, less the noise of its plug-in."""
        return [self._squared(self._rest(level)) for level in range(self.highest + 1)]

    @cached_property
    def squares_after(self) -> list[Squared]:
        """The same for averages over the second half of 2^l steps, whose bias is b_l + δ_l."""
        return [
            self._squared({level: -1.0} | self._rest(level)) for level in range(self.highest + 1)
        ]

    @property
    def mixes(self) -> bool:
        """Whether mean differences fall at the end of the pilot, or cannot be seen any more."""
        if self.highest < 2:
            return True
        sizes = [self._squared({level: 1.0}) for level in (self.highest - 1, self.highest)]
        clear = all(s.value > _CLEAR * s.se for s in sizes)
        return not clear or sizes[1].value <= _SLOW**2 * sizes[0].value

    def bias(self, level: int) -> Squared:
        """‖b_l‖², at any level."""
        return _continued(self.squares, level, 4.0)

    def bias_after(self, level: int) -> Squared:
        """That of averages over the second half of 2^l steps; it falls faster than 1/p."""
        return _continued(self.squares_after, level, 16.0)

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

    @cached_property
    def _covariances(self) -> list[Tensor]:
        return [self.pilot.covariance(level) for level in range(self.highest + 1)]

    @cached_property
    def variance_factor(self) -> float:
        """By what the variance of D_l falls from level to level at the end of the pilot."""
        sizes = self._covariances[-1].diagonal()[1:].tolist()
        sizes = [size for size in sizes[-3:] if size > 0.0]
        if len(sizes) < 2:
            return 0.5
        factor = (sizes[-1] / sizes[0]) ** (1.0 / (len(sizes) - 1))
        return min(_MOST_FACTOR, max(_LEAST_FACTOR, factor))

    def _rest(self, level: int) -> dict[int, float]:
        """b_l as a combination of differences, up to its sign: the last stands for all after it."""
        beyond = {m: 1.0 for m in range(level + 1, self.highest + 1)}
        return beyond | {self.highest: 2.0 if level < self.highest else 1.0}

    def _squared(self, terms: dict[int, float]) -> Squared:
        mean = torch.zeros_like(self.differences[0][0])
        noise = torch.zeros_like(self.differences[0][1])
        for level, factor in terms.items():
            mean = mean + factor * self.differences[level][0]
            noise = noise + factor**2 * self.differences[level][1]
        spread = float(4.0 * mean @ noise @ mean + 2.0 * (noise @ noise).trace())
        return Squared(float(mean @ mean - noise.trace()), math.sqrt(spread))


def _continued(squares: list[Squared], level: int, factor: float) -> Squared:
    """Beyond the last level that stands out from the noise, less by a factor for each level."""
    clear = [i for i, s in enumerate(squares) if s.value > _CLEAR * s.se]
    last = clear[-1] if clear else 0
    found = squares[min(level, last)]
    if not clear:
        found = Squared(max(0.0, found.value), found.se)
    scale = factor ** min(0, last - level)
    return Squared(scale * max(0.0, found.value), scale * found.se)
