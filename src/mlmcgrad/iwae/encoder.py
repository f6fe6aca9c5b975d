"""The gradient of the encoder φ, in five ways.

Draws z_ℓ = mean + scale·ε_ℓ of q come in blocks of k; ω are the weights w = p_θ(y, z)/q_φ(z | y)
within a block, normalised. Over the blocks that were drawn, the mean of

    iwae    Σ_ℓ ω_ℓ ∇_φ log w_ℓ                    the gradient of the IWAE bound
    stl     Σ_ℓ ω_ℓ (∂ log w_ℓ/∂z)(∂z_ℓ/∂φ)        the score of q left out ("sticking the landing")
    dreg    Σ_ℓ ω_ℓ² (∂ log w_ℓ/∂z)(∂z_ℓ/∂φ)       doubly reparameterised: unbiased for the bound

and over the states z_j of θ's estimate, with their coefficients c_j, which target p_θ(z | y),

    wake    Σ_j c_j ∇_φ log q_φ(z_j | y)           the wake phase: KL(p_θ(z | y) ‖ q_φ(z | y))
    mixed   half of iwae and half of wake.

Scalars are minimised here, so all of them with the other sign.

References: Burda, Grosse, Salakhutdinov (2016); Roeder, Wu, Duvenaud (2017); Tucker, Lawson, Gu,
Maddison (2019); Bornschein, Bengio (2015).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from mlmcgrad.iwae.networks import LatentModel
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

    def rows(self, owner: Tensor | int) -> Posterior:
        """One row for each of several draws: their datum, or how many there are of each."""
        if isinstance(owner, int):
            return Posterior(*(t.repeat_interleave(owner, 0) for t in self))
        return Posterior(*(pick(t, owner) for t in self))

    def again(self, z: Tensor, owner: Tensor) -> Tensor:
        """Draws that were made without a graph, (rows, latent), as functions of φ."""
        mine, known = self.rows(owner), self.detach().rows(owner)
        return mine.mean + mine.log_scale.exp() * ((z - known.mean) / known.log_scale.exp())


def draw_weights(kind: EncoderGradient, share: Tensor) -> Tensor:
    """The weight of a draw in the reparameterised gradient, from ω."""
    if kind == "wake":
        return torch.zeros_like(share)
    if kind == "dreg":
        return share.square()
    return share / 2.0 if kind == "mixed" else share


def draws_loss(
    kind: EncoderGradient, z: Tensor, slopes: Tensor, weight: Tensor, q: Posterior, batch: int
) -> Tensor:
    """−Σ b_ℓ log w_ℓ, mean over the batch, as a function of φ.

    Args:
        kind: which gradient.
        z: the draws as functions of φ, (draws, latent).
        slopes: of its part −Σ b_ℓ log p_θ(y, z_ℓ) in z, divided by the batch, (draws, latent).
        weight: b, (draws,).
        q: a row for each draw.
        batch: number of data.
    """
    if kind in ("dreg", "stl"):  # the score of q with respect to φ is left out
        q = q.detach()
    log_q = LatentModel.log_q(z, *q)
    return (slopes * z).sum() + (weight.to(z.dtype) * log_q).sum() / batch


def wake_loss(kind: EncoderGradient, states: Measure, q: Posterior) -> Tensor:
    """−Σ_j c_j log q_φ(z_j | y), mean over the batch, as a function of φ."""
    log_q = LatentModel.log_q(states.points, *q.rows(states.owner))
    total = -(states.coefficient.to(log_q.dtype) * log_q).sum() / len(q.mean)
    return total / 2.0 if kind == "mixed" else total
