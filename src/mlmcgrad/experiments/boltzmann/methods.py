"""How each method estimates ∇log Z: where its chains start, and what is made of them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mlmcgrad.backward import accumulate
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum
from mlmcgrad.experiments.boltzmann.coupled import Coupled
from mlmcgrad.experiments.boltzmann.exact import Hidden
from mlmcgrad.experiments.boltzmann.settings import CONTINUATION, STEPS, TRUNCATION
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Gibbs

_CHUNK = 2**13  # states are small
_SHORT = {"1": Average(1), str(STEPS): Average(1, burn_in=STEPS - 1)}
_MLMC = MLMC(TRUNCATION, assignment="balanced")
_ESTIMATORS: dict[str, Estimator] = {
    **{f"cd-{steps}": estimator for steps, estimator in _SHORT.items()},
    **{f"pcd-{steps}": estimator for steps, estimator in _SHORT.items()},
    "ucd": Average(1),
    "mlmc": _MLMC,
    "mlmc-sum": MLMCSum(TRUNCATION, CONTINUATION, assignment="balanced"),
    "mlmc-persistent": _MLMC,
    "average": Average(TRUNCATION),
}


class Method(Protocol):
    """Adds an estimate of ∇log Z to `.grad` of the machine's parameters."""

    def backward(self) -> int:
        """Do so, and return the Gibbs steps that it took, over all chains."""


def make(
    name: str, machine: Gibbs, data: Tensor, chains: int, generator: torch.Generator
) -> Method:
    """The method of this name, of `settings.LABELS`.

    Args:
        name: of the method.
        machine: that is trained.
        data: rows, at which chains start.
        chains: how many.
        generator: source of all randomness.
    """
    if name == "exact":
        return Enumeration(machine)
    kernel = Coupled(machine) if name == "ucd" else machine
    gradient = MarkovGradient(
        kernel, machine.loss, _ESTIMATORS[name], parameters=machine.parameters, chunk=_CHUNK
    )
    persistent = name.startswith("pcd") or name == "mlmc-persistent"
    return (Persistent if persistent else FromData)(gradient, data, chains, generator)


class FromData:
    """Chains start at rows of the data, drawn anew for every estimate."""

    def __init__(
        self, gradient: MarkovGradient, data: Tensor, chains: int, generator: torch.Generator
    ) -> None:
        self.gradient, self.generator = gradient, generator
        self.data, self.chains = data, chains

    def start(self) -> Tensor:
        """Where the chains start."""
        rows = torch.randint(len(self.data), (self.chains,), generator=self.generator)
        return self.data[rows]

    def backward(self) -> int:
        """See `Method`."""
        return self.gradient.backward(self.start(), generator=self.generator).evaluations


class Persistent(FromData):
    """Chains start at rows of the data once, and then go on where they stopped."""

    def __init__(
        self, gradient: MarkovGradient, data: Tensor, chains: int, generator: torch.Generator
    ) -> None:
        super().__init__(gradient, data, chains, generator)
        self.states = self.start()

    def backward(self) -> int:
        """See `Method`."""
        estimate = self.gradient.backward(self.states, generator=self.generator)
        self.states = estimate.last
        return estimate.evaluations


class Enumeration:
    """The exact gradient."""

    def __init__(self, machine: Gibbs) -> None:
        self.machine = machine

    def backward(self) -> int:
        """See `Method`."""
        gradients = Hidden(self.machine, self.machine.weight.dtype).gradient()
        accumulate(self.machine.parameters, gradients)
        return 0
