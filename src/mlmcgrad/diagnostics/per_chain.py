"""Every chain's own gradient estimate, where `MarkovGradient` returns only their mean.

With v(u) = Σ_j u_{owner(j)} c_j loss(x_j), ∇_θ v is linear in u, and the row of chain c of the
wanted matrix (chains, d) is its derivative in u_c. One backward pass gives ∇_θ v with its graph,
and one more for each of its d coordinates gives a column, for any number of chains. For models
with more parameters than chains it is done chain by chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlmcgrad.backward import leaves
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Context, Outcome, Start, take
from mlmcgrad.measure import Measure, chunks, pick
from mlmcgrad.plan import Plan

# States differentiated at once: their graph is kept for as many passes as there are parameters.
_STATES = 2**17


def chain_gradients(
    gradient: MarkovGradient, x0: Start, *context: object, plan: Plan, generator: torch.Generator
) -> tuple[Tensor, Outcome]:
    """Run the planned chains and return each one's estimate.

    Args:
        gradient: its `parameters` must be given, as they fix the order of the columns.
        x0: where the chains start.
        context: as for `gradient.backward`.
        plan: lengths and weights, from an estimator.
        generator: source of all randomness.

    Returns:
        (chains, d) float64 on the parameters' device, with all parameters flattened one after
        another; and the outcome.
    """
    parameters = required_parameters(gradient)
    total = torch.zeros(
        len(plan.levels),
        sum(p.numel() for p in parameters),
        dtype=torch.float64,
        device=parameters[0].device,
    )
    simulation = gradient.simulate(x0, context, plan, generator)
    for measure in chunks(simulation, _STATES):
        _add(total, gradient, measure, context, parameters)
    return total, simulation.outcome


def weighted_gradients(
    gradient: MarkovGradient, measure: Measure, context: Context, chains: int
) -> Tensor:
    """Σ_j c_j ∇loss(x_j) of each chain of a measure, (chains, d) float64."""
    parameters = required_parameters(gradient)
    total = torch.zeros(
        chains, sum(p.numel() for p in parameters), dtype=torch.float64, device=parameters[0].device
    )
    for part in chunks(iter([measure]), _STATES):
        _add(total, gradient, part, context, parameters)
    return total


def required_parameters(gradient: MarkovGradient) -> tuple[Tensor, ...]:
    """The gradient's parameters, or an error that says why they are needed."""
    if gradient.parameters is None:
        raise ValueError(
            "gradient must be made with parameters=... for diagnostics: they say which column of "
            "the result is which"
        )
    return tuple(gradient.parameters)


def _add(
    total: Tensor,
    gradient: MarkovGradient,
    measure: Measure,
    context: Context,
    parameters: Sequence[Tensor],
) -> None:
    """Add Σ_j c_j ∇loss(x_j) to the row of each point's chain."""
    owners, position = measure.owner.unique(return_inverse=True)
    if len(owners) <= total.shape[1]:
        # One after another: a pass over all points for each row would be quadratic in the rows.
        places = position.argsort(stable=True).split(position.bincount().tolist())
        parts = [part for place in places for part in place.split(gradient.chunk)]
        for part in parts:
            values = gradient.loss(pick(measure.points, part), *take(context, measure.owner[part]))
            weighted = (measure.coefficient[part].to(values.dtype) * values).sum()
            pieces = torch.autograd.grad(weighted, parameters, materialize_grads=True)
            total[measure.owner[part[0]]] += torch.cat([p.flatten() for p in pieces]).double()
        return
    values = gradient.loss(measure.points, *take(context, measure.owner))
    u = torch.ones(len(owners), dtype=values.dtype, device=values.device, requires_grad=True)
    weighted = measure.coefficient.to(values.dtype) * values
    used = set(leaves(weighted.sum()))
    columns = torch.autograd.grad(
        (u[position] * weighted).sum(), parameters, create_graph=True, materialize_grads=True
    )
    start = 0
    for parameter, column in zip(parameters, columns, strict=True):
        if parameter in used:
            for i, entry in enumerate(column.flatten()):
                (rows,) = torch.autograd.grad(entry, u, retain_graph=True, materialize_grads=True)
                total[owners, start + i] += rows.double()
        start += parameter.numel()
