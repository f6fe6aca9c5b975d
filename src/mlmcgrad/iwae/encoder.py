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

import torch
from torch import Tensor

from mlmcgrad.measure import Measure, pick

EncoderGradient: TypeAlias = Literal["iwae", "dreg", "stl", "wake", "mixed"]


class Posterior(NamedTuple):
    """q(z | y) of a batch: mean and log scale, (batch, latent) each."""

    mean: Tensor
    log_scale: Tensor

    def detach(self) -> Posterior:
        """The same numbers without a graph."""
        return Posterior(self.mean.detach(), self.log_scale.detach())

    def draw(self, noise: Tensor) -> Tensor:
        """Draws: mean + scale·ε for noise of shape (batch, draws, latent)."""
        return self.mean[:, None] + self.log_scale.exp()[:, None] * noise

    def rows(self, owner: Tensor) -> Posterior:
        """One row for each of several draws, from their datum."""
        return Posterior(*(pick(t, owner) for t in self))

    def add_up(self, owner: Tensor, of_mean: Tensor, of_log_scale: Tensor) -> Posterior:
        """Derivatives in mean and log scale, (rows, latent), added up for each datum."""
        pairs = zip(self, (of_mean, of_log_scale), strict=True)
        return Posterior(*(torch.zeros_like(q).index_add_(0, owner, part) for q, part in pairs))


def draw_weights(kind: EncoderGradient, share: Tensor) -> Tensor:
    """The weight of a draw in the reparameterised gradient, from ω."""
    if kind == "wake":
        return torch.zeros_like(share)
    if kind == "dreg":
        return share.square()
    return share / 2.0 if kind == "mixed" else share


def from_draws(kind: EncoderGradient, draws: Measure, slopes: Tensor, q: Posterior) -> Posterior:
    """The gradient of −Σ b_ℓ log w_ℓ, mean over the batch, in mean and log scale of each datum.

    Args:
        kind: which gradient.
        draws: draws of q with their weights b.
        slopes: of its part −Σ b_ℓ log p_θ(y, z_ℓ) in z, divided by the batch, (draws, latent).
        q: of the batch, without a graph.
    """
    mine, weight = q.rows(draws.owner), _weights(draws, q)
    moved = draws.points - mine.mean
    if kind in ("dreg", "stl"):  # log q only through z
        slopes = slopes - weight * moved * (-2.0 * mine.log_scale).exp()
        return q.add_up(draws.owner, slopes, slopes * moved)
    return q.add_up(draws.owner, slopes, slopes * moved - weight)


def from_states(kind: EncoderGradient, states: Measure, q: Posterior) -> Posterior:
    """The gradient of −Σ_j c_j log q_φ(z_j | y), mean over the batch, in the same way."""
    mine, weight = q.rows(states.owner), _weights(states, q)
    if kind == "mixed":
        weight = weight / 2.0
    inverse = (-mine.log_scale).exp()
    scaled = (states.points - mine.mean) * inverse  # ε
    of_mean = -weight * scaled * inverse
    return q.add_up(states.owner, of_mean, weight - weight * scaled.square())


def _weights(measure: Measure, q: Posterior) -> Tensor:
    """Coefficients of a mean over the batch, (points, 1)."""
    return (measure.coefficient / len(q.mean)).to(q.mean.dtype)[:, None]
