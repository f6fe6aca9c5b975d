"""Markov kernels: they simulate the planned chains and return their signed measure."""

from __future__ import annotations

from typing import Protocol

import torch

from mlmcgrad.kernels.base import Emit
from mlmcgrad.kernels.finite import Finite
from mlmcgrad.kernels.from_step import FromStep
from mlmcgrad.kernels.isir import ISIR
from mlmcgrad.kernels.mala import MALA
from mlmcgrad.kernels.regenerative import Regenerative
from mlmcgrad.kernels.rwmh import RWMH
from mlmcgrad.types import Context, Outcome, Plan, Start


class Kernel(Protocol):
    """What `MarkovGradient` needs of a kernel."""

    def run(
        self, x0: Start, context: Context, plan: Plan, generator: torch.Generator, emit: Emit
    ) -> Outcome:
        """Simulate the planned chains from x0; hand their measure to `emit`, piece by piece."""
        ...


__all__ = ["ISIR", "MALA", "RWMH", "Emit", "Finite", "FromStep", "Kernel", "Regenerative"]
