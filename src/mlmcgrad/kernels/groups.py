"""The weights of the blocks of importance sampling: arithmetic on log weights, no model.

With S_b the sum of the weights of block b and S_g that of a group of blocks, the measure
Σ_j a_j H^{(p_j)} on lengths gives block b the weight

    Σ_j (a_j / groups_j) · S_b / S_{g_j(b)},

where g_j(b) is the group of p_j blocks that b is in, and groups_j counts those that have any weight
at all. Chains of all lengths are one flat list, block after block.

These are some thousand numbers, so a call costs more than its arithmetic: NumPy, on the host, takes
a third of the time of torch.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad.plan import Plan

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


class Blocks(NamedTuple):
    """Where the blocks of some chains are."""

    chain: Integers  # (blocks,): which of these chains, from 0
    position: Integers  # (blocks,): number of the block in its chain, from 0
    first: Integers  # (chains,): the first block of each chain
    end: Integers  # (chains,): one more than the last

    @classmethod
    def of(cls, lengths: Integers) -> Blocks:
        """The blocks of chains of these lengths."""
        end = lengths.cumsum()
        chain = np.arange(len(lengths)).repeat(lengths)
        first = end - lengths
        return cls(chain, np.arange(len(chain)) - first[chain], first, end)


def shares(log_w: Floats) -> tuple[Floats, Floats]:
    """Block sums log S_b, (blocks,), and shares w / S_b, (blocks, k), 0 where S_b = 0."""
    top = log_w.max(1)
    top = np.where(top == -np.inf, 0.0, top)  # −∞ − (−∞)
    w = np.exp(log_w - top[:, None])
    total = w.sum(1)
    with np.errstate(divide="ignore"):
        log_sum: Floats = np.log(total) + top
    return log_sum, w / np.where(total > 0.0, total, 1.0)[:, None]


def block_weights(log_sum: Floats, blocks: Blocks, plan: Plan) -> tuple[Floats, Floats]:
    """The weight of each block in the estimate.

    Args:
        log_sum: log S_b, (blocks,).
        blocks: where they are.
        plan: of these chains.

    Returns:
        The weights, (blocks,), and log Σ_b S_b of each chain, (chains,).
    """
    lengths, weights = plan.lengths.numpy(), plan.weights.numpy()
    used = weights != 0.0
    used[:, -1] = True  # the whole simulation: its sum is returned
    groups = np.where(used, lengths[:, -1:] // lengths, 0)  # (chains, terms)
    count, blocks_in = groups.ravel(), (groups * lengths).ravel()
    term = np.arange(count.size)
    # One entry for each block and each term in which it has a part; those of a group follow
    # each other.
    before = np.arange(blocks_in.sum()) - (blocks_in.cumsum() - blocks_in).repeat(blocks_in)
    block = blocks.first[term // lengths.shape[1]].repeat(blocks_in) + before
    size = lengths.ravel().repeat(count)  # of each group
    start = size.cumsum() - size
    log_part = log_sum[block]
    top = np.maximum.reduceat(log_part, start)
    top[top == -np.inf] = 0.0  # −∞ − (−∞)
    part = np.exp(log_part - top.repeat(size))
    total = np.add.reduceat(part, start)  # S_g / exp(top), 0 or at least 1
    alive = total > 0.0
    of = term.repeat(count)
    living = np.bincount(of, alive, minlength=count.size)
    a = (weights * lengths).ravel()
    scale = np.zeros_like(total)
    scale[alive] = a[of[alive]] / living[of[alive]] / total[alive]
    weight: Floats = np.bincount(block, scale.repeat(size) * part, len(log_sum)).astype(float)
    whole = (count.cumsum() - count).reshape(groups.shape)[:, -1]
    with np.errstate(divide="ignore"):
        return weight, np.log(total[whole]) + top[whole]


def choose(log_w: Floats, blocks: Blocks, total: Floats, u: Floats) -> Integers:
    """One draw of each chain by its weight, as an index among all draws, (chains,).

    Args:
        log_w: (blocks, k).
        blocks: where they are.
        total: log Σ w of each chain, (chains,).
        u: a uniform for each chain, (chains,).
    """
    cumulative = np.exp(log_w - total[blocks.chain, None]).ravel().cumsum()
    ends = cumulative[blocks.end * log_w.shape[1] - 1]
    begin = np.concatenate([[0.0], ends[:-1]])
    # Not quite to the end of a chain, where rounding would choose the next one.
    u = np.minimum(u, 1.0 - 1e-9)
    return np.searchsorted(cumulative, begin + u * (ends - begin), side="right")


def uniforms(generator: torch.Generator, *shape: int) -> Tensor:
    """Uniforms in double precision, on the host."""
    return torch.rand(
        shape, dtype=torch.float64, device=generator.device, generator=generator
    ).cpu()
