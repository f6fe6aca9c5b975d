"""The first block of each datum: what its weights say, and where chains go on.

A chain that goes on has the state that was kept as its first candidate, which is no draw of q: the
bound and φ's gradient have the k−1 others then.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.kernels.proposing import FirstWeights
from mlmcgrad.store import Remembered


class Findings(NamedTuple):
    """Numbers about the weights, means over the batch; see `Step`."""

    bound: float
    effective: float
    largest: float


def findings(pieces: list[FirstWeights]) -> Findings:
    """The numbers for all data, from the pieces of a simulation."""
    share = np.concatenate([piece.share.T for piece in pieces], 1)  # (k, batch)
    log_sum = np.concatenate([piece.log_sum for piece in pieces])
    bound = float(log_sum.mean()) - math.log(len(share))
    if not math.isfinite(bound):
        raise FloatingPointError(f"the bound is {bound}: weights are not finite, or all are 0")
    effective = 1.0 / (share * share).sum(0)
    return Findings(bound, float(effective.mean()), float(share.max(0).mean()))


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
