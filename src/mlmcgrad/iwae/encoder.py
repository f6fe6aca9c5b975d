"""The gradient of the encoder φ, in five ways.

Draws z_ℓ = mean + scale·ε_ℓ of q come in blocks of k; ω are the weights w = p_θ(y, z)/q_φ(z | y)
within a block, normalised. Over the blocks that were drawn, the mean of

    iwae    Σ_ℓ ω_ℓ ∇_φ log w_ℓ                    the gradient of the IWAE bound
    stl     Σ_ℓ ω_ℓ (∂ log w_ℓ/∂z)(∂z_ℓ/∂φ)        the score of q left out ("sticking the landing")
    dreg    Σ_ℓ ω_ℓ² (∂ log w_ℓ/∂z)(∂z_ℓ/∂φ)       doubly reparameterised: unbiased for the bound

and over the states z_j of θ's estimate, with their coefficients c_j, which target p_θ(z | y),

    wake    Σ_j c_j ∇_φ log q_φ(z_j | y)           the wake phase: KL(p_θ(z | y) ‖ q_φ(z | y))
    mixed   half of iwae and half of wake.

Scalars are minimised here, so all of them with the other sign. All of it goes through the mean and
the log scale of q, where the derivatives are known:

    ∂z/∂mean = 1,                            ∂z/∂log scale = z − mean,
    ∂ log q(z)/∂z = −ε/scale = −∂ log q/∂mean,      ∂ log q/∂log scale = ε² − 1 (z fixed),

and log q(z) of a draw that moves with q has the derivatives 0 and −1. Only the encoder itself is
left to autograd.

References: Burda, Grosse, Salakhutdinov (2016); Roeder, Wu, Duvenaud (2017); Tucker, Lawson, Gu,
Maddison (2019); Bornschein, Bengio (2015).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.iwae.states import States
from mlmcgrad.measure import Floats, Measure, pick

EncoderGradient: TypeAlias = Literal["iwae", "dreg", "stl", "wake", "mixed"]


class Posterior(NamedTuple):
    """q(z | y) of a batch: mean and log scale, (batch, latent) each."""

    mean: Tensor
    log_scale: Tensor

    def detach(self) -> Posterior:
        """The same numbers without a graph."""
        return Posterior(self.mean.detach(), self.log_scale.detach())

    def add_up(self, owner: Tensor, of_mean: Tensor, of_log_scale: Tensor) -> Posterior:
        """Derivatives in mean and log scale, (rows, latent), added up for each datum."""
        pairs = zip(self, (of_mean, of_log_scale), strict=True)
        return Posterior(*(torch.zeros_like(q).index_add_(0, owner, part) for q, part in pairs))


def draw_weights(kind: EncoderGradient, share: Floats) -> Floats:
    """The weight of a draw in the reparameterised gradient, from ω."""
    if kind == "wake":
        return np.zeros_like(share)
    if kind == "dreg":
        return share * share
    return share / 2.0 if kind == "mixed" else share


def encoder_gradient(
    kind: EncoderGradient, states: States, slopes: Tensor, total: Floats, q: Posterior
) -> Posterior:
    """The gradient in mean and log scale of each datum, mean over the batch.

    Args:
        kind: which gradient.
        states: the states, with their coefficients c and their weights b as draws of q.
        slopes: of −Σ b_ℓ log p_θ(y, z_ℓ) in z, divided by the batch, (points, latent).
        total: Σ b_ℓ of each datum, (batch,), before draws were left out at random.
        q: of the batch, without a graph.
    """
    terms = []
    if kind != "wake":
        terms.append(from_draws(kind, states, slopes, total, q))
    if kind in ("wake", "mixed"):
        terms.append(from_states(kind, states.theta, q))
    return terms[0] if len(terms) == 1 else Posterior(*map(torch.add, *terms))


def from_draws(
    kind: EncoderGradient, states: States, slopes: Tensor, total: Floats, q: Posterior
) -> Posterior:
    """The gradient of −Σ b_ℓ log w_ℓ, for the arguments of `encoder_gradient`."""
    points, owner = states.theta.points, states.theta.owner
    moved = points - pick(q.mean, owner)
    if kind in ("dreg", "stl"):  # log q only through z
        weight = _weights(torch.from_numpy(states.phi), q)
        slopes = slopes - weight * moved * pick((-2.0 * q.log_scale).exp(), owner)
        return q.add_up(owner, slopes, slopes * moved)
    found = q.add_up(owner, slopes, slopes * moved)
    return Posterior(found.mean, found.log_scale.sub_(_weights(torch.from_numpy(total), q)))


def from_states(kind: EncoderGradient, states: Measure, q: Posterior) -> Posterior:
    """The gradient of −Σ_j c_j log q_φ(z_j | y), mean over the batch, in the same way."""
    weight = _weights(states.coefficient, q)
    if kind == "mixed":
        weight = weight / 2.0
    inverse = pick((-q.log_scale).exp(), states.owner)
    scaled = (states.points - pick(q.mean, states.owner)) * inverse  # ε
    of_mean = -weight * scaled * inverse
    return q.add_up(states.owner, of_mean, weight - weight * scaled.square())


def _weights(weight: Tensor, q: Posterior) -> Tensor:
    """Weights in a mean over the batch, as a column."""
    return (weight / len(q.mean)).to(q.mean)[:, None]
