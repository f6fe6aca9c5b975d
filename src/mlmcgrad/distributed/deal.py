"""Chains dealt by cost, longest first, so that all shares end together.

Each chain goes to the share that has the least to do so far (Graham 1969). The most that a share
has is then below mean + the cost of one chain, and a chain that alone costs more than the mean is
all that its share has; `share.py` is about such a chain.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from mlmcgrad.ranges import whole


def dealt(cost: Tensor | Sequence[float], shares: int) -> list[Tensor]:
    """Deal things of known cost to shares.

    Args:
        cost: of each thing, positive.
        shares: how many; at most as many as there are things.

    Returns:
        The numbers of the things of each share, ascending. Equal costs go to the share with fewer
        things, and then to the first one: the same everywhere.

    Example:
        >>> [rows.tolist() for rows in dealt([1.0, 8.0, 2.0, 4.0, 2.0], 2)]
        [[0, 1], [2, 3, 4]]
    """
    costs: list[float] = cost.tolist() if isinstance(cost, Tensor) else list(cost)
    whole(shares, "shares")
    if shares > len(costs):
        raise ValueError(f"shares must be ≤ {len(costs)}, the number of things, got {shares}")
    rows: list[list[int]] = [[] for _ in range(shares)]
    least = [(0.0, 0, share) for share in range(shares)]  # cost, things, number: a heap
    for row in sorted(range(len(costs)), key=lambda row: -costs[row]):
        total, count, share = least[0]
        rows[share].append(row)
        heapq.heapreplace(least, (total + costs[row], count + 1, share))
    return [torch.tensor(sorted(mine)) for mine in rows]
