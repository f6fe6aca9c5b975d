"""The first k candidates of each datum: draws of q, weighed once for θ and φ.

A chain that goes on has the state that was kept as its first candidate, which is no draw of q: the
bound and φ's gradient have the k−1 others then.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.kernels.base import Context, take
from mlmcgrad.store import Remembered


class FirstDraws(NamedTuple):
    """The first candidates, and their weights."""

    z: Tensor  # (batch, k, latent)
    log_w: Tensor  # (batch, k) float64
    share: Tensor  # (batch, k): ω, among the draws of q; 0 for a state that was kept
    bound: float  # the IWAE bound of the draws of q, mean over the batch
    start: Tensor  # (batch, latent): where a chain starts that has one state


def complete(x0: Tensor | Remembered, drawn: Tensor) -> Tensor:
    """The states that were kept, and draws of q, (batch, latent), where there is none."""
    points = x0.points if isinstance(x0, Remembered) else x0
    if points.shape != drawn.shape:
        raise ValueError(
            f"x0 must have shape {tuple(drawn.shape)}, a state for each image, got "
            f"{tuple(points.shape)}"
        )
    points = points.detach().to(drawn)
    return torch.where(x0.known[:, None], points, drawn) if isinstance(x0, Remembered) else points


def first_draws(
    model: LatentModel, z: Tensor, context: Context, start: Tensor, *, old: bool, chunk: int
) -> FirstDraws:
    """Weigh the first candidates.

    Args:
        model: has the weights.
        z: draws of q, (batch, k, latent).
        context: the data and q, with a row for each datum.
        start: one state for each datum, (batch, latent).
        old: whether these are the first candidates, in place of the first draws.
        chunk: rows of the decoder in one pass.
    """
    if old:
        z = torch.cat([start[:, None], z[:, 1:]], 1)
    log_w = _weigh(model, z, context, chunk)
    fresh = log_w[:, int(old) :]
    bound = float((fresh.logsumexp(1) - math.log(fresh.shape[1])).mean())
    if not math.isfinite(bound):
        raise FloatingPointError(f"the bound is {bound}: weights are not finite, or all are 0")
    share = fresh.softmax(1)
    if old:
        share = torch.cat([torch.zeros_like(share[:, :1]), share], 1)
    return FirstDraws(z, log_w, share, bound, start)


@torch.no_grad()
def _weigh(model: LatentModel, z: Tensor, context: Context, chunk: int) -> Tensor:
    """Log weights, (batch, k) float64."""
    owner = torch.arange(len(z), device=z.device).repeat_interleave(z.shape[1])
    pieces = [
        model.log_weight(draws, *take(context, who))
        for draws, who in zip(z.flatten(0, 1).split(chunk), owner.split(chunk), strict=True)
    ]
    return torch.cat(pieces).double().reshape(z.shape[:2])
