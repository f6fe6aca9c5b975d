"""Kernels simulate the planned chains and yield their signed measure."""

from mlmcgrad.kernels.adaptation import Adapted, adapt
from mlmcgrad.kernels.base import Kernel, Outcome, Simulation
from mlmcgrad.kernels.finite import Finite, Regenerative
from mlmcgrad.kernels.from_step import FromStep
from mlmcgrad.kernels.gibbs import Gibbs
from mlmcgrad.kernels.importance import Importance
from mlmcgrad.kernels.isir import ISIR
from mlmcgrad.kernels.metropolis import MALA, RWMH

__all__ = [
    "ISIR",
    "MALA",
    "RWMH",
    "Adapted",
    "Finite",
    "FromStep",
    "Gibbs",
    "Importance",
    "Kernel",
    "Outcome",
    "Regenerative",
    "Simulation",
    "adapt",
]
