"""Problems whose gradient is known exactly, for tests, experiments and first steps."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mlmcgrad.problems.boltzmann_machine import Boltzmann, boltzmann
from mlmcgrad.problems.finite_chain_model import FiniteChain, finite_chain
from mlmcgrad.problems.linear_gaussian_model import LinearGaussian, linear_gaussian
from mlmcgrad.problems.sticky_model import Sticky, sticky
from mlmcgrad.problems.targets import GaussianTarget, Skewed, gaussian, skewed


class Problem(Protocol):
    """What every problem offers: its parameters and the exact gradient ∇V."""

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of the loss."""

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """∇V(θ), one tensor for each parameter."""


__all__ = [
    "Boltzmann",
    "FiniteChain",
    "GaussianTarget",
    "LinearGaussian",
    "Problem",
    "Skewed",
    "Sticky",
    "boltzmann",
    "finite_chain",
    "gaussian",
    "linear_gaussian",
    "skewed",
    "sticky",
]
