"""Draws of the proposal q(z | y) for a batch, their weights, and the start of the chains.

    z = mean + scale·ε,     log w = log p_θ(y, z) + ½|ε|² + Σ log scale + ½ latent · log 2π.

Only the decoder runs in chunks: the rest of a draw takes a few numbers, so thousands of draws are
one operation. The kernels therefore see the index of a datum and its q, and the images are looked
up for each chunk.

The gradient of the encoder φ, in five ways.

Draws z_ℓ = mean + scale·ε_ℓ of q come in blocks of k; ω are the weights w = p_θ(y, z)/q_φ(z | y)
normalised within a block. Three gradients are means over the blocks:

    iwae    Σ_ℓ ω_ℓ ∇_φ log w_ℓ                    the gradient of the IWAE bound
    stl     Σ_ℓ ω_ℓ (∂ log w_ℓ/∂z)(∂z_ℓ/∂φ)        without the score of q ("sticking the landing")
    dreg    Σ_ℓ ω_ℓ² (∂ log w_ℓ/∂z)(∂z_ℓ/∂φ)       doubly reparameterised: unbiased for the bound

The states z_j of θ's estimate with their coefficients c_j target p_θ(z | y) and give

    wake    Σ_j c_j ∇_φ log q_φ(z_j | y)           the wake phase: KL(p_θ(z | y) ‖ q_φ(z | y))
    mixed   half of iwae and half of wake.

The code minimises, so all signs are reversed. Every gradient passes through the mean and the log
scale of q, with the derivatives

    ∂z/∂mean = 1,                            ∂z/∂log scale = z − mean,
    ∂ log q(z)/∂z = −ε/scale = −∂ log q/∂mean,      ∂ log q/∂log scale = ε² − 1 (z fixed),

and log q(z) of a reparameterised draw has the derivatives 0 and −1. Autograd differentiates only
the encoder itself.

References: Burda, Grosse, Salakhutdinov (2016); Roeder, Wu, Duvenaud (2017); Tucker, Lawson, Gu,
Maddison (2019); Bornschein, Bengio (2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context
from mlmcgrad.kernels.importance import QUIET, FirstWeights
from mlmcgrad.measure import Floats, Measure, pick, ship
from mlmcgrad.store import Remembered

# Rows that are drawn at once.
ROWS = 2**13


def context(
    log_joint: Callable[[Tensor, Tensor], Tensor], y: Tensor, q: Posterior, chunk: int
) -> Context:
    """Return the context of `propose` and `log_weight`: index, mean, scale, log volume, density.

    Kernels select rows of the tensors, and pass the density through, a function of z and the index.
    """

    def chunked(z: Tensor, index: Tensor) -> Tensor:
        pieces = zip(z.split(chunk), index.split(chunk), strict=True)
        return torch.cat([log_joint(part, pick(y, who)) for part, who in pieces])

    index = torch.arange(len(q.mean), device=q.mean.device)
    volume = q.log_scale.sum(1) + 0.5 * math.log(2.0 * math.pi) * q.mean.shape[1]
    return index, q.mean, q.log_scale.exp(), volume, chunked


def propose(
    rows: int, _: Tensor, mean: Tensor, scale: Tensor, *__: Any, generator: torch.Generator
) -> Tensor:
    """Draw from q once for each row."""
    noise = torch.randn(
        rows, mean.shape[1], dtype=mean.dtype, device=mean.device, generator=generator
    )
    return torch.addcmul(mean, scale, noise)


def log_weight(
    z: Tensor,
    index: Tensor,
    mean: Tensor,
    scale: Tensor,
    volume: Tensor,
    log_joint: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return log w, (rows,)."""
    square = ((z - mean) / scale).square().sum(1)  # |ε|²
    return log_joint(z, index) + torch.add(volume, square, alpha=0.5)


@QUIET
def summarize_weights(pieces: list[FirstWeights]) -> dict[str, float]:
    """Return the fields of `ObjectiveInfo`: batch means of functions of the first k weights.

    The first candidate of a persistent chain is its previous state, which is not a draw of q: the
    block then consists of the other k−1.
    """
    share = np.concatenate([piece.share.T for piece in pieces], 1)  # (k, batch)
    log_sum = np.concatenate([piece.log_sum for piece in pieces])
    bound = float(log_sum.mean()) - math.log(len(share))
    if not math.isfinite(bound):
        raise FloatingPointError(f"the bound is {bound}: weights are not finite, or all are 0")
    effective = 1.0 / (share * share).sum(0)
    largest = float(share.max(0).mean())
    return {"bound": bound, "effective": float(effective.mean()), "largest": largest}


def complete(x0: Tensor | Remembered, drawn: Tensor) -> Tensor:
    """Return the stored states, with draws of q, (batch, latent), where none is stored."""
    points = x0.points if isinstance(x0, Remembered) else x0
    if points.shape != drawn.shape:
        raise ValueError(
            f"x0 must have shape {tuple(drawn.shape)}, a state for each image, got "
            f"{tuple(points.shape)}"
        )
    points = ship(points.detach().to(drawn.dtype), drawn.device)
    if not isinstance(x0, Remembered):
        return points
    return torch.where(ship(x0.known, drawn.device)[:, None], points, drawn)


EncoderGradient: TypeAlias = Literal["iwae", "dreg", "stl", "wake", "mixed"]


class Posterior(NamedTuple):
    """q(z | y) of a batch: mean and log scale, (batch, latent) each."""

    mean: Tensor
    log_scale: Tensor

    def detach(self) -> Posterior:
        """Return the same numbers without a graph."""
        return Posterior(self.mean.detach(), self.log_scale.detach())

    def sum_by_datum(self, owner: Tensor, of_mean: Tensor, of_log_scale: Tensor) -> Posterior:
        """Sum derivatives in mean and log scale, (rows, latent), over the rows of each datum."""
        pairs = zip(self, (of_mean, of_log_scale), strict=True)
        return Posterior(*(torch.zeros_like(q).index_add_(0, owner, part) for q, part in pairs))


@dataclass(frozen=True)
class States:
    """States of the simulations with their weights in both gradients."""

    theta: Measure  # states, their data and c_j, these two on the host
    phi: Floats  # (points,): b_j, on the host


@QUIET
def draw_weights(kind: EncoderGradient, share: Floats) -> Floats:
    """Return the weights b of draws in the reparameterised gradient, from ω."""
    if kind == "wake":
        return np.zeros_like(share)
    if kind == "dreg":
        return share * share
    return share / 2.0 if kind == "mixed" else share


def encoder_gradient(
    kind: EncoderGradient, states: States, slopes: Tensor, total: Floats, q: Posterior
) -> Posterior:
    """Return the gradient in mean and log scale of each datum, mean over the batch.

    Args:
        kind: which gradient.
        states: the states with their weights c and b.
        slopes: gradient of −Σ b_ℓ log p_θ(y, z_ℓ) in z, divided by the batch, (points, latent).
        total: Σ b_ℓ of each datum, (batch,), before thinning.
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
    """Return the gradient of −Σ b_ℓ log w_ℓ, for the arguments of `encoder_gradient`."""
    points = states.theta.points
    owner = ship(states.theta.owner, points.device)
    moved = points - pick(q.mean, owner)
    if kind in ("dreg", "stl"):  # log q only through z
        column = _column(torch.from_numpy(states.phi), q)
        slopes = slopes - column * moved * pick((-2.0 * q.log_scale).exp(), owner)
        return q.sum_by_datum(owner, slopes, slopes * moved)
    sums = q.sum_by_datum(owner, slopes, slopes * moved)
    return Posterior(sums.mean, sums.log_scale.sub_(_column(torch.from_numpy(total), q)))


def from_states(kind: EncoderGradient, states: Measure, q: Posterior) -> Posterior:
    """Return the gradient of −Σ_j c_j log q_φ(z_j | y), mean over the batch."""
    column = _column(states.coefficient, q)
    if kind == "mixed":
        column = column / 2.0
    owner = ship(states.owner, states.points.device)
    inverse = pick((-q.log_scale).exp(), owner)
    scaled = (states.points - pick(q.mean, owner)) * inverse  # ε
    of_mean = -column * scaled * inverse
    return q.sum_by_datum(owner, of_mean, column - column * scaled.square())


def _column(weight: Tensor, q: Posterior) -> Tensor:
    """Return weights in a mean over the batch, as a column."""
    return ship((weight / len(q.mean)).to(q.mean.dtype), q.mean.device)[:, None]
