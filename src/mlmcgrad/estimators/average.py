"""The plain chain average H^{(p)} = (1/p) Σ_{i≤p} H(X_i), with an optional burn-in.

`Average(1)` is the short chain (contrastive divergence, one-step gradients), `Average(T)` with
`ISIR` is BR-SNIS, the baseline of the paper's experiments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch

from mlmcgrad.levels import check_truncation
from mlmcgrad.plan import Plan
from mlmcgrad.ranges import non_negative
from mlmcgrad.schedules import Schedule, as_schedule, value_at


@final
@dataclass(frozen=True)
class Average:
    """Average over `length` steps of every chain, after `burn_in` steps that do not count.

    Args:
        length: how many states are averaged, a number or a schedule; ⌊length⌋ steps, at least 1.
        burn_in: how many steps come before them, a number or a schedule. A chain makes
            burn_in + length transitions.

    Example:
        >>> Average(4, burn_in=2).expected_length()
        6.0
    """

    length: float | Schedule
    burn_in: float | Schedule = 0.0

    def __post_init__(self) -> None:
        as_schedule(self.length, "length")
        as_schedule(self.burn_in, "burn_in")

    def plan(self, chains: int, n: int | None, generator: torch.Generator) -> Plan:
        """Length and weights of the chains at iteration n. The generator is not used."""
        skip, count = self._steps(n)
        share = 1.0 / count
        # H^{(b+L)} and H^{(b)} with (b+L)/L and −b/L: the steps of the burn-in cancel.
        terms = {skip + count: share} if skip == 0 else {skip: -share, skip + count: share}
        return Plan(
            levels=torch.zeros(chains, dtype=torch.int64),
            lengths=torch.tensor([list(terms)]).expand(chains, -1),
            weights=torch.tensor([list(terms.values())], dtype=torch.float64).expand(chains, -1),
        )

    def expected_length(self, n: int | None = None) -> float:
        """Transitions of one chain at iteration n."""
        return float(sum(self._steps(n)))

    def longest(self, n: int | None = None) -> int:
        """Transitions of one chain at iteration n."""
        return sum(self._steps(n))

    def _steps(self, n: int | None) -> tuple[int, int]:
        length = value_at(self.length, n, "length")
        if not length >= 1.0:
            raise ValueError(f"length must be ≥ 1, got {length!r} at n = {n}")
        check_truncation(length)
        burn_in = non_negative(value_at(self.burn_in, n, "burn_in"), "burn_in")
        return math.floor(burn_in), math.floor(length)
