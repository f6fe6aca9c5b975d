"""The multilevel estimator in sum form: all levels up to a random one.

    Ĥ = H^{(ℓ_0)} + Σ_{l=1}^{min(K, κ)} { H^{(ℓ_l)} − H^{(ℓ_{l−1})} } / r^l,      P(K ≥ l) = r^l,

with ℓ_l = base · 2^l and κ = max{l : ℓ_l ≤ T_n}. Level l is there with probability r^l and is
divided by it, so the sum telescopes as the single term of `MLMC` does: E[Ĥ] = E[H^{(ℓ_κ)}]. A
simulation of length ℓ_L, L = min(K, κ), serves every level below it, so nothing of it is thrown
away: with r = 1/2 and base = 1 its mean length is 1 + κ/2, against κ + 2^{−κ} of `MLMC`.

As a measure on lengths (`plan.py`): a_l = r^{−l} − r^{−(l+1)} for l < L, and a_L = r^{−L}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from mlmcgrad.levels import Assignment, Geometric, check_assignment, check_truncation
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import whole
from mlmcgrad.schedules import Schedule, as_schedule, value_at


@final
@dataclass(frozen=True)
class MLMCSum:
    """Multilevel Monte Carlo with all levels up to a random one; less work than `MLMC`.

    Args:
        truncation: T_n, a number or a schedule: levels with longer simulations are not used.
            `math.inf` uses all of them, which leaves no bias where the second moments of the
            levels fall fast enough (with `kernels.Importance` and `continuation=2**-1.5`, faster
            than 2^{−1.5 l}).
        continuation: r, the probability that level l + 1 is there if level l is; below 1/2 for an
            infinite truncation, whose mean length would be infinite otherwise.
        assignment: `"independent"` one K per chain, `"shared"` one K for all of them,
            `"balanced"` stratified over the chains, for a nearly constant cost per call.
        base: b, by which all lengths are multiplied: where the ladder starts.
        max_transitions: the longest simulation of an infinite truncation. One that would be longer
            is cut there, which a warning says and `Estimate.cut` counts.

    Example:
        >>> MLMCSum(truncation=64).expected_length()
        4.0
        >>> MLMCSum(math.inf, 2**-1.5).expected_length() < 2.21
        True

    Reference:
        Rhee, Glynn (2015), "Unbiased estimation with square root convergence for SDE models":
        the coupled sum estimator.
    """

    truncation: float | Schedule
    continuation: float = 0.5
    assignment: Assignment = field(default="independent", kw_only=True)
    base: int = field(default=1, kw_only=True)
    max_transitions: int = field(default=2**20, kw_only=True)

    def __post_init__(self) -> None:
        as_schedule(self.truncation, "truncation")
        if not 0.0 < self.continuation < 1.0:
            raise ValueError(
                f"continuation must lie strictly between 0 and 1, got {self.continuation!r}"
            )
        check_assignment(self.assignment)
        whole(self.base, "base")
        whole(self.max_transitions, "max_transitions")
        if not callable(self.truncation):
            self._longest(self.truncation)

    def plan(self, chains: int, n: int | None, generator: torch.Generator) -> Plan:
        """Draw the levels and lay out lengths and weights of the chains at iteration n."""
        # P(G > l) = r^l for the levels G ≥ 1 of this law.
        levels = Geometric(1.0 - self.continuation).sample(chains, generator, self.assignment) - 1
        return self.plan_for(levels, n)

    def plan_for(self, levels: Tensor, n: int | None = None) -> Plan:
        """The same for given levels K ≥ 0, (chains,): what `plan` does after drawing them."""
        kappa = self.truncation_level(n)
        last = levels.clamp(max=kappa)
        lengths, weights = _ladders(self.base, self.continuation, int(last.max()))
        cut = int((levels > kappa).sum()) if self._infinite(n) else 0
        return Plan(levels, lengths.index_select(0, last), weights.index_select(0, last), cut)

    def truncation_level(self, n: int | None = None) -> int:
        """κ_n, the highest level used at iteration n; 0 if even ℓ_1 > T_n."""
        longest = self._longest(value_at(self.truncation, n, "truncation"))
        return max(0, math.floor(longest / self.base).bit_length() - 1)

    def expected_length(self, n: int | None = None) -> float:
        """Exact mean number of transitions of one chain at iteration n."""
        kappa, r = self.truncation_level(n), self.continuation
        # ℓ_L = ℓ_0 + Σ_{l=1}^{L} (ℓ_l − ℓ_{l−1}), and level l is there with probability r^l.
        return self.base * (1.0 + math.fsum(2.0 ** (i - 1) * r**i for i in range(1, kappa + 1)))

    def longest(self, n: int | None = None) -> int:
        """Transitions of the longest chain that may be drawn at iteration n: ℓ_κ."""
        return self.base * 2 ** self.truncation_level(n)

    def _infinite(self, n: int | None) -> bool:
        return value_at(self.truncation, n, "truncation") == math.inf

    def _longest(self, truncation: float) -> float:
        """What T_n allows; for an infinite one, what the budget allows."""
        if truncation != math.inf:
            return check_truncation(truncation)
        if self.continuation >= 0.5:
            raise ValueError(
                f"continuation must be below 1/2 for truncation=math.inf, got "
                f"{self.continuation!r}: level l has 2^l steps and probability r^l, so the mean "
                "length would be infinite; for example continuation=2**-1.5, or a finite truncation"
            )
        return self.max_transitions


@lru_cache(maxsize=64)
def _ladders(base: int, continuation: float, highest: int) -> tuple[Tensor, Tensor]:
    """Lengths and weights of the simulations that end at level 0 … highest, a row for each."""
    level = torch.arange(highest + 1)
    last = level[:, None]
    lengths = base * 2 ** torch.minimum(level, last)
    # Not by torch.pow, which may be wrong in the last digit of 2^l.
    share = torch.tensor([continuation**-i for i in range(highest + 1)], dtype=torch.float64)
    weights = torch.where(level < last, share - share / continuation, share) / lengths
    return lengths, torch.where(level <= last, weights, 0.0)
