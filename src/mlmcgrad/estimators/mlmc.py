"""The multilevel estimator (eq. mlmc-estim of the paper; PAPER.md section 2).

    Ĥ = H^{(ℓ_0)} + τ(K) { H^{(ℓ_K)} − H^{(ℓ_{K−1})} } 1{ℓ_K ≤ T_n},      K ~ μ.

With the default law ℓ_k = base · 2^k and τ(K) = 2^K. It has the bias of a chain of length ℓ_κ,
κ = ⌊log2(T_n/base)⌋, and with base = 1 the expected length κ + 2^{−κ}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final, get_args

import torch
from torch import Tensor

from mlmcgrad.levels import Assignment, Geometric, LevelLaw, check_truncation
from mlmcgrad.schedules import Schedule, as_schedule
from mlmcgrad.types import Plan


@final
@dataclass(frozen=True)
class MLMC:
    """Multilevel Monte Carlo over chain lengths: the bias of length T at a cost of log T.

    Args:
        truncation: T_n, the longest chain that may be run; a number or a schedule.
        levels: law of the level K.
        assignment: `"independent"` one K per chain, `"shared"` one K for all of them,
            `"balanced"` stratified over the chains, for a nearly constant cost per call.
        base: chain length b at which the ladder starts. More cost, less variance; a truncation
            below it is no error, the chains then have length b.

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
    assignment: Assignment = "independent"
    base: int = 1

    def __post_init__(self) -> None:
        as_schedule(self.truncation, "truncation")
        if not callable(self.truncation):
            check_truncation(self.truncation)
        if self.assignment not in get_args(Assignment):
            raise ValueError(
                f"assignment must be one of {get_args(Assignment)}, got {self.assignment!r}"
            )
        if isinstance(self.base, bool) or not isinstance(self.base, int) or self.base < 1:
            raise ValueError(f"base must be an integer from 1 on, got {self.base!r}")

    def plan(self, chains: int, n: int, generator: torch.Generator) -> Plan:
        """Draw the levels and lay out lengths and step weights of the chains at iteration n."""
        return self.plan_for(self.levels.sample(chains, generator, self.assignment), n)

    def plan_for(self, levels: Tensor, n: int) -> Plan:
        """The same for given levels, (chains,): what `plan` does after drawing them."""
        kappa = self.truncation_level(n)
        table = [self.levels.pieces(k, self.base) for k in range(kappa + 1)]
        ends = torch.tensor([row[0] for row in table])  # (κ+1, 3)
        values = torch.tensor([row[1] for row in table], dtype=torch.float64)
        used = torch.where(levels <= kappa, levels, 0)
        return Plan(levels, ends[used, -1], ends[used], values[used])

    def truncation_level(self, n: int) -> int:
        """κ_n, the highest level used at iteration n."""
        truncation = as_schedule(self.truncation, "truncation")(n)
        return self.levels.truncation_level(truncation, self.base)

    def expected_length(self, n: int) -> float:
        """Exact mean number of transitions of one chain at iteration n."""
        truncation = as_schedule(self.truncation, "truncation")(n)
        return self.levels.expected_length(truncation, self.base)


__all__ = ["MLMC"]
