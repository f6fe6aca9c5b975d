"""What an estimator is compared with: the exact gradient, or a long run with its standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from mlmcgrad.diagnostics.per_chain import chain_gradients, required_parameters
from mlmcgrad.estimators import Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start
from mlmcgrad.problems import Problem


@dataclass(frozen=True)
class Reference:
    """A gradient, flattened over all parameters, and how well it is known."""

    value: Tensor  # (d,) float64
    se: Tensor  # (d,), zero if it is exact


Known: TypeAlias = Problem | Sequence[Tensor] | Reference
"""A problem with an exact gradient, a tensor for each parameter, or a `Reference`."""


def as_reference(known: Known, gradient: MarkovGradient) -> Reference:
    """Read what the user gave, in the order of the gradient's parameters."""
    parameters = required_parameters(gradient)
    if isinstance(known, Reference):
        value, se = known.value, known.se
    else:
        if isinstance(known, Sequence):
            tensors = list(known)
        else:
            by_leaf = dict(zip(known.parameters, known.exact_gradient(), strict=True))
            tensors = [by_leaf[p] for p in parameters]
        value = torch.cat([t.detach().flatten().double().cpu() for t in tensors])
        se = torch.zeros_like(value)
    wanted = sum(p.numel() for p in parameters)
    if len(value) != wanted:
        raise ValueError(
            f"reference must have an entry for each of the {wanted} parameters, got {len(value)}"
        )
    return Reference(value, se)


def long_run(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    length: int,
    burn_in: int,
    generator: torch.Generator,
) -> Reference:
    """Average long independent chains: a reference for problems without an exact answer.

    Args:
        gradient: its kernel and loss are used, its estimator is not.
        x0: where the chains start, (chains, *shape), at least 8 of them for a standard error.
        context: as for `gradient.backward`.
        length: states averaged by each chain.
        burn_in: transitions before that; the bias that is left is that of a start after it.
        generator: source of all randomness.
    """
    chains = gradient.kernel.chains(x0, context)
    if chains < 8:
        raise ValueError(f"x0 must have ≥ 8 rows for a standard error, got {chains}")
    plan = Average(length, burn_in).plan(chains, None, generator)
    each, _ = chain_gradients(gradient, x0, *context, plan=plan, generator=generator)
    return Reference(each.mean(0).cpu(), each.std(0).cpu() / chains**0.5)
