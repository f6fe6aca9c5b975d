"""Draws of q(z | y) for a batch, and their weights w = p_θ(y, z)/q_φ(z | y).

    z = mean + scale·ε,     log w = log p_θ(y, z) + ½|ε|² + Σ log scale + ½ latent · log 2π.

Only the decoder needs its rows in chunks: whatever else there is to a draw takes a few numbers, so
it is one operation for thousands of them. Hence what the kernels see of a datum is its number and
its q, and the data themselves are looked up for each chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mlmcgrad.iwae.spread import Spread, here
from mlmcgrad.kernels.base import Context
from mlmcgrad.measure import pick

LogJoint: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# Rows that are drawn at once.
ROWS = 2**13


@dataclass(frozen=True)
class Batch:
    """Data as a whole; kernels cut tensors in their context into rows, and leave this alone."""

    y: Tensor  # (batch, …)
    log_joint: LogJoint
    chunk: int  # rows of the decoder in one pass
    spread: Spread = here

    def log_p(self, z: Tensor, number: Tensor) -> Tensor:
        """Log p_θ(y, z) for data by their numbers, (rows,): one pass of the decoder."""
        return self.log_joint(z, pick(self.y, number))


def context(batch: Batch, mean: Tensor, log_scale: Tensor) -> Context:
    """What `propose` and `log_weight` take after the draws: number, mean, scale, log volume."""
    number = torch.arange(len(mean), device=mean.device)
    volume = log_scale.sum(1) + 0.5 * math.log(2.0 * math.pi) * mean.shape[1]
    return number, mean, log_scale.exp(), volume, batch


def propose(
    rows: int, _: Tensor, mean: Tensor, scale: Tensor, *__: Any, generator: torch.Generator
) -> Tensor:
    """One draw of q for each row."""
    noise = torch.randn(
        rows, mean.shape[1], dtype=mean.dtype, device=mean.device, generator=generator
    )
    return torch.addcmul(mean, scale, noise)


def log_weight(
    z: Tensor, number: Tensor, mean: Tensor, scale: Tensor, volume: Tensor, batch: Batch
) -> Tensor:
    """Log w, (rows,)."""
    log_p = batch.spread((z, number), batch.log_p, batch.chunk)
    square = ((z - mean) / scale).square().sum(1)  # |ε|²
    return log_p + torch.add(volume, square, alpha=0.5)
