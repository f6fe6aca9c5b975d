"""One estimator after another in a training: Ĥ_n is that of the stage of iteration n.

    Ĥ_n = Ĥ^{(i)},      n_i ≤ n < n_{i+1}.

With a schedule T_n an estimator changes its truncation; stages change everything, also where the
ladder of lengths starts (`base`) and how fast it thins out. `diagnostics.plan` makes them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

import torch

from mlmcgrad.plan import Plan
from mlmcgrad.schedules import check_iteration

if TYPE_CHECKING:
    from mlmcgrad.estimators import Estimator


@final
@dataclass(frozen=True)
class Stages:
    """Estimators, each from an iteration on.

    Args:
        steps: first iteration and estimator of each stage; the first begins at 1.

    Example:
        >>> from mlmcgrad.estimators import MLMCSum, Average
        >>> stages = Stages(((1, Average(1)), (100, MLMCSum(64, base=4))))
        >>> stages.longest(99), stages.longest(100)
        (1, 64)
    """

    steps: tuple[tuple[int, Estimator], ...]

    def __post_init__(self) -> None:
        for step in self.steps:
            if not (isinstance(step, tuple) and len(step) == 2 and hasattr(step[1], "plan")):
                raise TypeError(
                    f"steps must be pairs of a first iteration and an estimator, got {step!r}; for "
                    "example ((1, Average(1)), (100, MLMC(64)))"
                )
        begins = [check_iteration(n) for n, _ in self.steps]
        if begins[:1] != [1] or any(b <= a for a, b in pairwise(begins)):
            raise ValueError(
                f"steps must begin at iterations that rise from 1 on, got {begins}; for example "
                "((1, Average(1)), (100, MLMC(64)))"
            )

    def at(self, n: int | None) -> Estimator:
        """The estimator of iteration n.

        Raises:
            TypeError: n is None, and there is more than one stage.
        """
        if len(self.steps) == 1:
            return self.steps[0][1]
        if n is None:
            raise TypeError(
                "n must be given, because the estimator has several stages; pass the number of "
                "the iteration, n=1, 2, …"
            )
        return self.steps[bisect_right(self.steps, check_iteration(n), key=lambda s: s[0]) - 1][1]

    def plan(self, chains: int, n: int | None, generator: torch.Generator) -> Plan:
        """Lengths and weights of the chains by the estimator of iteration n."""
        return self.at(n).plan(chains, n, generator)

    def longest(self, n: int | None = None) -> int:
        """Transitions of the longest chain that may be planned at iteration n."""
        return self.at(n).longest(n)

    def expected_length(self, n: int | None = None) -> float:
        """Mean number of transitions of one chain at iteration n."""
        return self.at(n).expected_length(n)
