"""Kernels: they simulate the planned chains and yield their signed measure."""

from mlmcgrad.kernels.adaptation import Adapted, adapt
from mlmcgrad.kernels.base import Kernel, Outcome, Simulation
from mlmcgrad.kernels.finite import Finite
from mlmcgrad.kernels.from_step import FromStep
from mlmcgrad.kernels.gibbs import Gibbs
from mlmcgrad.kernels.importance import Importance
from mlmcgrad.kernels.isir import ISIR
from mlmcgrad.kernels.mala import MALA
from mlmcgrad.kernels.proposing import FirstBlock
from mlmcgrad.kernels.regenerative import Regenerative
from mlmcgrad.kernels.rwmh import RWMH

__all__ = [
    "ISIR",
    "MALA",
    "RWMH",
    "Adapted",
    "Finite",
    "FirstBlock",
    "FromStep",
    "Gibbs",
    "Importance",
    "Kernel",
    "Outcome",
    "Regenerative",
    "Simulation",
    "adapt",
]
