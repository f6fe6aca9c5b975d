"""Estimators: signed measures on lengths, see `mlmcgrad.plan`."""

from __future__ import annotations

from typing import Protocol

import torch

from mlmcgrad.estimators.average import Average
from mlmcgrad.estimators.mlmc import MLMC
from mlmcgrad.plan import Plan


class Estimator(Protocol):
    """What `MarkovGradient` needs of an estimator."""

    def plan(self, chains: int, n: int | None, generator: torch.Generator) -> Plan:
        """Lengths and weights of the chains at iteration n ≥ 1; None where none was given."""


__all__ = ["MLMC", "Average", "Estimator"]
