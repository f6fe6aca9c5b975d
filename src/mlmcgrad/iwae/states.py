"""States with two weights: one differentiation of the decoder serves decoder and encoder.

With ℓ_j = −log p_θ(y, z_j), θ takes Σ_j c_j ∇_θ ℓ_j over the states of the simulations, and φ takes
Σ_j b_j ∂ℓ_j/∂z_j over draws of q, which as a rule are among these states. The backward pass of
Σ_j c_j ℓ_j meets c_j ∂ℓ_j/∂z_j in row j on its way: times b_j/c_j it is what φ needs. Only states
without a weight for θ take a backward pass for φ alone, which leaves the parameters out.

Most of the states hardly matter: with a spread of 20 nats one candidate of a step has all the
weight. `thinned` leaves them out at random without changing the expectation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.backward import WeightedBackward
from mlmcgrad.iwae.spread import Spread, here
from mlmcgrad.measure import Booleans, Floats, Measure, certainty, concatenate, thin
from mlmcgrad.plan import Plan

# b/c is taken where it is below this; in float32 a larger one could amplify an underflow.
_LARGEST_RATIO = 1e6


@dataclass(frozen=True)
class States:
    """States of the simulations with their weight in both gradients."""

    theta: Measure  # c_j, with the states and the datum they belong to
    phi: Floats  # (points,): b_j; weights are scalars, on the host


def side_by_side(theta: list[Measure], draws: Measure, phi: Floats) -> States:
    """States of chains that have nothing in common with the draws of φ.

    Args:
        theta: the measure.
        draws: the draws; their coefficients are not used.
        phi: b, (draws,).
    """
    nothing = Measure(draws.points, draws.owner, torch.zeros_like(draws.coefficient))
    whole = concatenate([*theta, nothing])
    return States(whole, np.concatenate([np.zeros(len(whole) - len(phi)), phi]))


def thresholds(
    states: States, plan: Plan, thinning: float, *, by_block: bool
) -> tuple[Floats, float | Floats]:
    """Weights below which `thinned` leaves a state out at random: for θ, (points,), and for φ.

    Args:
        states: the states.
        plan: of their chains.
        thinning: part of the weight of a step, or of the largest weight of a datum.
        by_block: the states are blocks of importance sampling, not those of a Markov chain.
    """
    owner = states.theta.owner.cpu().numpy()
    if not by_block:
        return (thinning * plan.largest_step_weight.numpy())[owner], thinning
    largest = np.zeros(len(plan.levels))
    np.maximum.at(largest, owner, np.abs(states.theta.coefficient.cpu().numpy()))
    return (thinning * largest)[owner], (thinning / plan.longest.numpy())[owner]


def thinned(
    states: States, threshold: Floats, phi: float | Floats, generator: torch.Generator
) -> States:
    """Leave out states of small weight at random; the expectation of both gradients stays.

    A state is kept with the probability min(1, max(|c|/threshold, b/phi)), and its weights are
    divided by it.

    Args:
        states: the states.
        threshold: size of c from which on a state is always kept, (points,); 0 keeps whatever
            has a weight.
        phi: the same for b.
        generator: source of the randomness.
    """
    c = states.theta.coefficient.cpu().numpy()
    probability = np.maximum(certainty(c, threshold), certainty(states.phi, phi))
    theta, keep = thin(states.theta, probability, generator)
    return States(theta, states.phi[keep] / probability[keep])


def differentiate(
    log_joint: Callable[[Tensor, Tensor], Tensor],
    parameters: tuple[Tensor, ...],
    states: States,
    y: Tensor,
    *,
    chunk: int,
    spread: Spread = here,
) -> tuple[tuple[Tensor, ...], Tensor, float, int]:
    """Both gradients, mean over the data, in chunks of states.

    Args:
        log_joint: −ℓ(z, y), (rows,).
        parameters: θ.
        states: the states and their weights.
        y: data, (batch, …).
        chunk: states in one backward pass.
        spread: takes the passes of θ; if in several processes, what is returned of θ is that of
            the passes that were taken here.

    Returns:
        Σ_j c_j ∇_θ ℓ_j; the slopes b_j ∂ℓ_j/∂z_j, (points, latent); Σ_j c_j ℓ_j; and the number of
        states that were differentiated.
    """
    points, owner, b = states.theta.points, states.theta.owner, states.phi
    c, slopes = states.theta.coefficient.cpu().numpy(), torch.zeros_like(points)

    def weighted(weight: Floats) -> Measure:
        return Measure(points, owner, torch.from_numpy(weight / -len(y)).to(points))

    both = WeightedBackward(
        log_joint, (y,), divisor=1, parameters=parameters, wide=spread is not here
    )
    theta, used = weighted(c), c != 0.0
    if used.any():
        rows = _rows(used)
        slopes[rows] = spread(theta[rows].parts, _adding(both), chunk)
    served = b <= _LARGEST_RATIO * np.abs(c)  # φ, by the pass of θ
    ratio = np.where(served, b, 0.0) / np.where(used, c, 1.0)
    slopes *= torch.from_numpy(ratio).to(slopes)[:, None]
    count = both.count
    if not served.all():
        only_phi = WeightedBackward(log_joint, (y,), divisor=1, parameters=())
        rows = _rows(~served)
        slopes[rows] = here(weighted(b)[rows].parts, _adding(only_phi), chunk)
        count += only_phi.count
    return both.gradients(), slopes, both.value, count


def _adding(total: WeightedBackward) -> Callable[..., Tensor]:
    return lambda *piece: total.add_with_slopes(Measure(*piece))


def _rows(where: Booleans) -> Tensor | slice:
    """The places where there is True."""
    return slice(None) if where.all() else torch.from_numpy(np.flatnonzero(where))
