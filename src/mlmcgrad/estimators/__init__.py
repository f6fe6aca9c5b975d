"""Estimators: how long each chain runs, and the weight of each of its steps."""

from __future__ import annotations

from typing import Protocol

import torch

from mlmcgrad.estimators.average import Average
from mlmcgrad.estimators.mlmc import MLMC
from mlmcgrad.types import Plan


class Estimator(Protocol):
    """What `MarkovGradient` needs of an estimator."""

    def plan(self, chains: int, n: int, generator: torch.Generator) -> Plan:
        """Lengths and step weights of the chains at iteration n ≥ 1."""
        ...


__all__ = ["MLMC", "Average", "Estimator"]
