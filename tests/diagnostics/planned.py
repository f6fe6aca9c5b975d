"""Gradients that the tests of the planner share, with all that is known of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import kernels, problems
from tests.diagnostics.exact import Exact


@dataclass(frozen=True)
class Known:
    """A gradient, its start, and its exact moments."""

    gradient: mg.MarkovGradient
    x0: Tensor
    exact: Exact


def finite(states: int, seed: int, longest: int = 2**11) -> Known:
    """A chain with a few states, from one of them."""
    chain = problems.finite_chain(states=states, seed=seed)
    law = torch.zeros(states, dtype=torch.float64)
    law[int(chain.start(1)[0])] = 1.0
    gradient = mg.MarkovGradient(
        chain.kernel(), chain.loss, mg.MLMC(2), parameters=chain.parameters
    )
    features = (chain.features - chain.data_mean).double().detach()
    return Known(gradient, chain.start(1), Exact(chain.matrix(), law, features, longest))


def importance(d: int = 2, s: float = 1.25, m: float = 0.5) -> tuple[mg.MarkovGradient, Tensor]:
    """Target N(0, I), proposal N(m, s² I), H(x) = x, whose limit is 0; and its context."""
    theta = torch.zeros(d, dtype=torch.float64, requires_grad=True)

    def log_weight(z: Tensor, _: Tensor) -> Tensor:
        return 0.5 * ((z - m) / s).square().sum(1) - 0.5 * z.square().sum(1)

    def propose(rows: int, _: Tensor, generator: torch.Generator) -> Tensor:
        return m + s * torch.randn(rows, d, dtype=torch.float64, generator=generator)

    kernel = kernels.Importance(log_weight, propose, 4)
    gradient = mg.MarkovGradient(kernel, lambda z, _: z @ theta, mg.MLMC(2), parameters=[theta])
    return gradient, torch.zeros(1, dtype=torch.float64)
