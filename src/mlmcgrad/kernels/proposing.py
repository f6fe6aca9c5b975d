"""What kernels have in common that draw from a proposal q and weigh what they drew: w = π/q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.kernels.base import (
    Context,
    Start,
    check_rows,
    check_unchanged,
    count_states,
    take,
    tensors_in,
)
from mlmcgrad.measure import Floats, Integers, Measure, pick
from mlmcgrad.ranges import whole
from mlmcgrad.store import Remembered

# The candidates of one step of all chains are in memory at once.
MOST_CANDIDATES = 10**8
_NEARLY_ALL = 0.999


@dataclass(frozen=True)
class FirstBlock:
    """The first k candidates of `ISIR` or `Importance`, drawn and weighed by the caller.

    A caller who needs their weights anyway (the encoder of an IWAE does) pays for them once: passed
    as x0, they are not drawn and weighed again.
    """

    points: Tensor  # (chains, k, *shape): independent draws of the proposal
    log_weight: Tensor  # (chains, k)


class FirstWeights(NamedTuple):
    """The weights of the first block of some chains: independent draws of q, k for each."""

    log_sum: Floats  # (chains,): log Σ w
    share: Floats  # (chains, k): w / Σ w


class Part(NamedTuple):
    """A piece of a simulation: its measure, and the weights of draws within their block."""

    measure: Measure
    share: Tensor  # (points,) float64: w / Σ w over the block; 0 outside of the blocks that count
    first: FirstWeights  # of the chains that begin in this piece


@dataclass(frozen=True)
class ProposingKernel:
    """Draws of q in blocks, with their weights; see `ISIR` for the arguments."""

    log_weight: Callable[..., Tensor]
    propose: Callable[..., Tensor]
    candidates: int
    chunk: int = field(default=1024, kw_only=True)

    def __post_init__(self) -> None:
        whole(self.candidates, "candidates")
        whole(self.chunk, "chunk")

    def chains(self, x0: Start, context: Context) -> int:
        """One for each row of x0, or for x0=None of the first tensor in the context."""
        chains = self._count(x0, context)
        if chains * self.candidates > MOST_CANDIDATES:
            raise ValueError(
                f"candidates × chains must be at most {MOST_CANDIDATES:,}, which are in memory at "
                f"once, got {self.candidates:,} × {chains:,}; use fewer of them, and longer chains"
            )
        return chains

    def _count(self, x0: Start, context: Context) -> int:
        if isinstance(x0, (FirstBlock, Remembered)):
            return len(x0.points)
        if x0 is not None:
            return count_states(x0, type(self).__name__)
        tensors = [tensor for tensor in tensors_in(context) if tensor.dim()]
        if not tensors:
            raise ValueError(
                "x0=None needs a context tensor with one row per chain, which says how many "
                "chains there are; got none"
            )
        return len(tensors[0])

    def check_block(self, x0: FirstBlock) -> None:
        """Refuse a first block with another number of candidates or weights."""
        if x0.log_weight.shape != x0.points.shape[:2] or x0.points.shape[1] != self.candidates:
            raise ValueError(
                f"x0 must hold {self.candidates} candidates and a weight for each, got points "
                f"of shape {tuple(x0.points.shape)}, weights {tuple(x0.log_weight.shape)}"
            )

    def fresh(
        self, context: Context, owner: Tensor, generator: torch.Generator
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Draws for these rows with their log weights, chunk by chunk."""
        states, log_weights = [], []
        for who in owner.split(self.chunk) if len(owner) else ():
            rows = take(context, who)
            states.append(self.draw(rows, len(who), generator))
            log_weights.append(self.weigh(states[-1], rows))
        return states, log_weights

    def weigh(self, z: Tensor, context: Context) -> Tensor:
        """Log weights in float64, (rows,)."""
        version = z._version
        log_w = self.log_weight(z, *context)
        check_rows("log_weight", log_w, z)
        check_unchanged("log_weight", z, version)
        return log_w.double()

    def draw(self, context: Context, rows: int, generator: torch.Generator) -> Tensor:
        """One draw of q for each row."""
        z = self.propose(rows, *context, generator=generator)
        if not isinstance(z, Tensor) or z.dim() == 0 or z.shape[0] != rows:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(
                f"propose(rows, *context, generator) must return one draw per row, here "
                f"({rows}, …), got {got}"
            )
        return z


def insert(chunks: list[Tensor], start: Tensor, where: Tensor) -> Tensor:
    """Put the candidates of x0 into their rows, the drawn ones into the others."""
    if not chunks:
        return start
    drawn = torch.cat(chunks)
    if drawn.shape[1:] != start.shape[1:] or drawn.dtype != start.dtype:
        raise ValueError(
            f"x0 must look like a draw of propose, {drawn.dtype} of shape (chains, "
            f"{', '.join(map(str, drawn.shape[1:]))}), got {start.dtype} of row shape "
            f"{tuple(start.shape[1:])}"
        )
    given = where.cpu().numpy()
    order = np.empty(len(given), dtype=np.int64)
    order[given], order[~given] = np.arange(len(start)), len(start) + np.arange(len(drawn))
    return pick(torch.cat([start.to(drawn.device), drawn]), torch.from_numpy(order))


def usable(log_w: Tensor) -> tuple[Floats, int]:
    """Log weights with −∞ for those that are NaN or +∞, on the host, and how many these are."""
    values: Floats = log_w.cpu().numpy()
    if values.max() < np.inf:  # which a NaN is not
        return values, 0
    bad = ~(values < np.inf)
    return np.where(bad, -np.inf, values), int(np.count_nonzero(bad))


def check_alive(log_w: Floats, chains: Integers, what: str) -> None:
    """Refuse chains without any weight.

    Args:
        log_w: the largest log weight of each chain, (chains,).
        chains: their numbers.
        what: what has no weight.
    """
    dead = log_w == -np.inf
    if dead.any():
        raise FloatingPointError(
            f"log_weight is −inf (or NaN) for {what} of {dead.sum()} chains (chain "
            f"{chains[dead.argmax()]} is one of them), so there is nothing to select; "
            "use a proposal that covers the target, more candidates, or an x0 inside the support"
        )


def count_collapsed(share: Floats) -> int:
    """In how many blocks one of several candidates has nearly all of the weight.

    Args:
        share: normalised weights, (chains, k).
    """
    return int((share > _NEARLY_ALL).sum()) if share.shape[1] > 1 else 0
