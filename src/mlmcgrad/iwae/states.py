"""States with two weights: one differentiation of the decoder serves decoder and encoder.

With ℓ_j = −log p_θ(y, z_j), θ takes Σ_j c_j ∇_θ ℓ_j over the states of the chains, and φ takes
Σ_j b_j ∂ℓ_j/∂z_j over the first k draws, which are states of the chains too. The backward pass of
Σ_j c_j ℓ_j meets c_j ∂ℓ_j/∂z_j in row j on its way: times b_j/c_j it is what φ needs. Only states
without a weight for θ take a backward pass for φ alone, which leaves the parameters out.

Most of the states hardly matter: with a spread of 20 nats one candidate of a step has all the
weight. `thinned` leaves them out at random without changing the expectation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.backward import WeightedBackward
from mlmcgrad.kernels.base import Spread
from mlmcgrad.measure import Measure, certainty, concatenate, pick, starts, thin
from mlmcgrad.plan import Plan

# b/c is taken where it is below this; in float32 a larger one could amplify an underflow.
_LARGEST_RATIO = 1e6


@dataclass(frozen=True)
class States:
    """States of the chains with their weight in both gradients."""

    theta: Measure  # c_j, with the states and the datum they belong to
    phi: Tensor  # (points,) float64: b_j
    draw: Tensor  # (points,) int64: number of the state among the first draws, or −1


def of_blocks(theta: list[Measure], phi: Tensor) -> States:
    """States of i-SIR: every chain begins with the first draws.

    Args:
        theta: the measure as `ISIR` yields it; chain by chain, all of them in the first piece.
        phi: b, (chains, k).
    """
    position = torch.arange(phi.shape[1], device=phi.device)
    first = starts(theta[0].owner).nonzero() + position  # (chains, k)
    whole = concatenate(theta)
    owner = whole.owner[first]
    draw, weight = torch.full_like(whole.owner, -1), torch.zeros_like(whole.coefficient)
    draw[first], weight[first] = owner * len(position) + position, phi[owner, position]
    return States(whole, weight, draw)


def side_by_side(theta: list[Measure], draws: Tensor, phi: Tensor) -> States:
    """States of chains that have nothing in common with the first draws.

    Args:
        theta: the measure.
        draws: (chains, k, latent).
        phi: b, (chains, k).
    """
    owner = torch.arange(len(phi), device=phi.device).repeat_interleave(phi.shape[1])
    weight = phi.flatten()
    first = Measure(draws.flatten(0, 1), owner, torch.zeros_like(weight))
    whole = concatenate([*theta, first])
    both, draw = torch.zeros_like(whole.coefficient), torch.full_like(whole.owner, -1)
    both[-len(owner) :], draw[-len(owner) :] = weight, torch.arange(len(owner), device=phi.device)
    return States(whole, both, draw)


def thresholds(
    states: States, plan: Plan, thinning: float, *, by_block: bool
) -> tuple[Tensor, float | Tensor]:
    """Weights below which `thinned` leaves a state out at random: for θ, (points,), and for φ.

    Args:
        states: the states.
        plan: of their chains.
        thinning: part of the weight of a step, or of the largest weight of a datum.
        by_block: the states are blocks of importance sampling, not those of a Markov chain.
    """
    owner = states.theta.owner
    if not by_block:
        largest = plan.largest_step_weight.to(owner.device)
        return thinning * largest[owner], thinning
    size = states.theta.coefficient.abs()
    largest = size.new_zeros(len(plan.levels)).scatter_reduce(0, owner, size, "amax")
    return thinning * largest[owner], thinning / plan.longest.to(owner.device)[owner]


def thinned(
    states: States, threshold: Tensor, phi: float | Tensor, generator: torch.Generator
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
    probability = torch.maximum(
        certainty(states.theta.coefficient, threshold), certainty(states.phi, phi)
    )
    theta, keep = thin(states.theta, probability, generator)
    return States(theta, pick(states.phi, keep) / pick(probability, keep), pick(states.draw, keep))


def differentiate(
    loss: Callable[[Tensor, Tensor], Tensor],
    parameters: tuple[Tensor, ...],
    states: States,
    y: Tensor,
    *,
    draws: int,
    chunk: int,
    spread: Spread | None = None,
) -> tuple[tuple[Tensor, ...], Tensor, float, int]:
    """Both gradients, mean over the data, in chunks of states.

    Args:
        loss: ℓ(z, y), (rows,).
        parameters: θ.
        states: the states and their weights.
        y: data, (batch, …).
        draws: the number of first draws, batch·k.
        chunk: states in one backward pass.
        spread: takes the passes of θ, in several processes; what is returned of θ is then that
            of the passes that were taken here.

    Returns:
        Σ_j c_j ∇_θ ℓ_j; the slopes b_j ∂ℓ_j/∂z_j, (draws, latent); Σ_j c_j ℓ_j; and the number of
        states that were differentiated.
    """
    measure, b, draw = states.theta, states.phi, states.draw
    c = measure.coefficient
    # One row more: what is no first draw has the number −1, and ends there.
    slopes = measure.points.new_zeros(draws + 1, *measure.points.shape[1:])
    both = WeightedBackward(
        loss, (y,), divisor=len(y), parameters=parameters, wide=spread is not None
    )
    used = c != 0.0
    served = used & (b <= _LARGEST_RATIO * c.abs())  # φ is served by the pass of θ
    # Where it is not served, the ratio may be anything: the pass of φ puts its slope there.
    ratio = (b / c).to(slopes.dtype)[:, None]

    def add(*piece: Tensor) -> Tensor:
        return both.add_with_slopes(Measure(*piece))

    for rows in _chunks(used, len(used) if spread else chunk):
        piece = measure[rows].parts
        slope = spread(piece, add, chunk) if spread else add(*piece)
        slopes[pick(draw, rows)] = pick(ratio, rows) * slope
    only_phi = WeightedBackward(loss, (y,), divisor=len(y), parameters=())
    weighted = Measure(measure.points, measure.owner, b)
    for rows in _chunks((b != 0.0) & ~served, chunk):
        slopes[pick(draw, rows)] = only_phi.add_with_slopes(weighted[rows])
    return both.gradients(), slopes[:-1], both.value, both.count + only_phi.count


def _chunks(where: Tensor, size: int) -> Iterator[Tensor | slice]:
    """The places where there is True, `size` at a time."""
    count = int(where.sum())
    if count == len(where):
        yield from (slice(i, i + size) for i in range(0, count, size))
    elif count:
        yield from where.nonzero()[:, 0].split(size)
