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

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.measure import Floats, Integers
from mlmcgrad.plan import Plan


class Blocks(NamedTuple):
    """Where the blocks of some chains are."""

    chain: Integers  # (blocks,): which of these chains, from 0
    first: Integers  # (chains,): the first block of each chain
    end: Integers  # (chains,): one more than the last

    @classmethod
    def of(cls, lengths: Integers) -> Blocks:
        """The blocks of chains of these lengths."""
        end = lengths.cumsum()
        return cls(np.arange(len(lengths)).repeat(lengths), end - lengths, end)


def shares(log_w: Floats) -> tuple[Floats, Floats]:
    """Block sums log S_b, (blocks,), and shares w / S_b, (blocks, k), 0 where S_b = 0."""
    columns = np.ascontiguousarray(log_w.T)  # k is small: sums over a short last axis are slow
    top = columns.max(0)
    top[top == -np.inf] = 0.0  # −∞ − (−∞)
    w = np.exp(columns - top)
    total = w.sum(0)
    with np.errstate(divide="ignore"):
        log_sum: Floats = np.log(total) + top
    total[total == 0.0] = 1.0
    return log_sum, np.ascontiguousarray((w / total).T)


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
    count, inside, length = groups.ravel(), (groups * lengths).ravel(), lengths.ravel()
    # One entry for each block and each term in which it has a part; those of a group follow
    # each other.
    begin = blocks.first.repeat(lengths.shape[1]) - (inside.cumsum() - inside)
    block = begin.repeat(inside)
    block += np.arange(len(block))
    size = length.repeat(count)  # of each group
    start = size.cumsum() - size
    log_part = log_sum[block]
    top = np.maximum.reduceat(log_part, start)
    top[top == -np.inf] = 0.0  # −∞ − (−∞)
    part = np.exp(log_part - top.repeat(size))
    total = np.add.reduceat(part, start)  # S_g / exp(top), 0 or at least 1
    whole = (count.cumsum() - count).reshape(groups.shape)[:, -1]
    with np.errstate(divide="ignore"):
        of_chain = np.log(total[whole]) + top[whole]
    living = count
    if not total.all():
        term = np.arange(len(count)).repeat(count)
        living = np.bincount(term, total > 0.0, len(count))
        total[total == 0.0] = 1.0
    share = (weights.ravel() * length / np.maximum(living, 1)).repeat(count) / total
    weight: Floats = np.bincount(block, share.repeat(size) * part, len(log_sum)).astype(float)
    return weight, of_chain


def choose(log_sum: Floats, share: Floats, blocks: Blocks, total: Floats, u: Floats) -> Integers:
    """One draw of each chain by its weight, as an index among all draws, (chains,).

    Args:
        log_sum: log S_b, (blocks,).
        share: w / S_b, (blocks, k).
        blocks: where they are.
        total: log Σ w of each chain, (chains,).
        u: a uniform for each chain, (chains,).
    """
    cumulative = (np.exp(log_sum - total[blocks.chain])[:, None] * share).ravel().cumsum()
    ends = cumulative[blocks.end * share.shape[1] - 1]
    begin = np.concatenate([[0.0], ends[:-1]])
    # Not quite to the end of a chain, where rounding would choose the next one.
    u = np.minimum(u, 1.0 - 1e-9)
    return np.searchsorted(cumulative, begin + u * (ends - begin), side="right")


def uniforms(generator: torch.Generator, *shape: int) -> Tensor:
    """Uniforms in double precision, on the host."""
    return torch.rand(
        shape, dtype=torch.float64, device=generator.device, generator=generator
    ).cpu()
