"""The multilevel estimator (eq. mlmc-estim of the paper).

    Ĥ = H^{(ℓ_0)} + τ(K) { H^{(ℓ_K)} − H^{(ℓ_{K−1})} } 1{ℓ_K ≤ T_n},      K ~ μ.

With the default law ℓ_k = base · 2^k and τ(K) = 2^K. It has the bias of a chain of length ℓ_κ,
κ = ⌊log2(T_n/base)⌋, and with base = 1 the expected length κ + 2^{−κ}. Every chain has at least the
length ℓ_0, also where ℓ_0 > T_n.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from mlmcgrad.levels import Assignment, Geometric, LevelLaw, check_assignment, check_truncation
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import whole
from mlmcgrad.schedules import Schedule, as_schedule, value_at


@final
@dataclass(frozen=True)
class MLMC:
    """Multilevel Monte Carlo over chain lengths: the bias of length T at a cost of log T.

    Args:
        truncation: T_n, a number or a schedule: levels with longer chains are not used. Every
            chain has the length ℓ_0 at least, whatever T_n is: `base` for the default law,
            base · ⌊1/(2μ(1))⌋ for one with μ(1) < 1/2.
        levels: law μ of the level K.
        assignment: `"independent"` one K per chain, `"shared"` one K for all of them,
            `"balanced"` stratified over the chains, for a nearly constant cost per call.
        base: b, by which all lengths are multiplied: where the ladder starts. More cost, less
            variance; a truncation below it is no error, the chains then have length b.

    Example:
        >>> from mlmcgrad import schedules
        >>> MLMC(truncation=schedules.power(1.0, 0.5)).expected_length(n=4096)
        6.015625

    Reference:
        Godichon-Baggioni, Lang, Le Corff, Stoehr, Surendran, "Convergence of Multi-Level Markov
        Chain Monte Carlo Adaptive Stochastic Gradient Algorithms", Section 2 and Appendix A.
    """

    truncation: float | Schedule
    levels: LevelLaw = Geometric()
    assignment: Assignment = field(default="independent", kw_only=True)
    base: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        as_schedule(self.truncation, "truncation")
        if not callable(self.truncation):
            check_truncation(self.truncation)
        check_assignment(self.assignment)
        whole(self.base, "base")

    def plan(self, chains: int, n: int | None, generator: torch.Generator) -> Plan:
        """Draw the levels and lay out lengths and weights of the chains at iteration n."""
        return self.plan_for(self.levels.sample(chains, generator, self.assignment), n)

    def plan_for(self, levels: Tensor, n: int | None = None) -> Plan:
        """The same for given levels, (chains,): what `plan` does after drawing them."""
        return self.levels.plan(levels, self.truncation_level(n), self.base)

    def truncation_level(self, n: int | None = None) -> int:
        """κ_n, the highest level used at iteration n."""
        return self.levels.truncation_level(value_at(self.truncation, n, "truncation"), self.base)

    def expected_length(self, n: int | None = None) -> float:
        """Exact mean number of transitions of one chain at iteration n."""
        return self.levels.expected_length(value_at(self.truncation, n, "truncation"), self.base)

    def longest(self, n: int | None = None) -> int:
        """Transitions of the longest chain that may be drawn at iteration n: ℓ_κ, or ℓ_0."""
        kappa = self.truncation_level(n)
        return max(self.levels.length(k, self.base) for k in (0, kappa))
