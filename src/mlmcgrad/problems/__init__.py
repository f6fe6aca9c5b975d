"""Models whose gradient is known exactly: for tests, experiments and first steps."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mlmcgrad.problems.boltzmann import Boltzmann, boltzmann
from mlmcgrad.problems.finite_chain import FiniteChain, finite_chain
from mlmcgrad.problems.gaussian import Gaussian, gaussian
from mlmcgrad.problems.linear_gaussian import LinearGaussian, linear_gaussian
from mlmcgrad.problems.skewed import Skewed, skewed
from mlmcgrad.problems.sticky import Sticky, sticky


class Problem(Protocol):
    """What every problem offers: a loss, and the gradient that its chain averages tend to."""

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What the loss is differentiated in."""
        ...

    def exact_gradient(self) -> tuple[Tensor, ...]:
        """∇V(θ), one tensor for each parameter."""
        ...


__all__ = [
    "Boltzmann",
    "FiniteChain",
    "Gaussian",
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
