"""Estimators: signed measures on lengths, see `mlmcgrad.plan`."""

from __future__ import annotations

from typing import Protocol

import torch

from mlmcgrad.estimators.average import Average
from mlmcgrad.estimators.mlmc import MLMC
from mlmcgrad.estimators.mlmc_sum import MLMCSum
from mlmcgrad.estimators.stages import Stages
from mlmcgrad.plan import Plan


class Estimator(Protocol):
    """What `MarkovGradient` needs of an estimator."""

    def plan(self, chains: int, n: int | None, generator: torch.Generator) -> Plan:
        """Lengths and weights of the chains at iteration n ≥ 1; None where none was given."""

    def longest(self, n: int | None = None) -> int:
        """Transitions of the longest chain that may be planned at iteration n."""

    def expected_length(self, n: int | None = None) -> float:
        """Mean number of transitions of one chain at iteration n."""


# A transition takes microseconds: nobody waits for so many of them by intention.
MAX_TRANSITIONS = 10**9


def check_budget(
    estimator: Estimator, chains: int, n: int | None, limit: int = MAX_TRANSITIONS
) -> None:
    """Refuse chains that would never end, before any of them is planned.

    Args:
        estimator: what plans the chains.
        chains: how many there are.
        n: iteration; None where none was given.
        limit: transitions that one chain may make, and all of them in expectation.
    """
    longest = estimator.longest(n)
    if chains * longest <= limit:  # as a rule; the mean takes longer to compute
        return
    mean = chains * estimator.expected_length(n)
    where = "" if n is None else f" at n = {n}"
    if longest > limit or mean > limit:
        asks = f"a chain of {longest:,} transitions" if longest > limit else f"{mean:,.0f} in all"
        raise ValueError(
            f"estimator: {estimator} may ask for {asks}{where}, beyond max_transitions = "
            f"{limit:,}; lower its truncation or length, or raise max_transitions"
        )


__all__ = ["MAX_TRANSITIONS", "MLMC", "Average", "Estimator", "MLMCSum", "Stages", "check_budget"]
