"""The rows of each group side by side, so that all groups are worked on at once.

Groups have different numbers of rows. They are put into buckets of similar size, and within a
bucket filled up to the largest group with rows that are not there (`present` is 0). A bucket has a
price, that of the calls which work on it, so the buckets are those with the smallest sum of prices
and rows: small data are one bucket, and in large data little is filled up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PRICE = 500  # of a bucket, in rows


@dataclass(frozen=True)
class Bucket:
    """Groups of similar size: `g` of them with up to `n` rows, `p` fixed and `q` random columns."""

    groups: Tensor  # (g,) int64: their numbers
    x: Tensor  # (g, n, p)
    z: Tensor  # (g, n, q)
    y: Tensor  # (g, n)
    trials: Tensor  # (g, n)
    offset: Tensor  # (g, n)
    present: Tensor  # (g, n): 1, or 0 for a row that is not there

    def __len__(self) -> int:
        return len(self.groups)

    def select(self, which: Tensor | slice) -> Bucket:
        """Some of the groups."""
        return Bucket(*(tensor[which] for tensor in vars(self).values()))


def buckets(
    group: Tensor, count: int, x: Tensor, z: Tensor, y: Tensor, trials: Tensor, offset: Tensor
) -> list[Bucket]:
    """Put rows into buckets.

    Args:
        group: of each row, (rows,).
        count: the number of groups; each has a row at least.
        x: columns of the fixed effects, (rows, p).
        z: columns of the random effects, (rows, q).
        y: response, (rows,).
        trials: (rows,).
        offset: (rows,).
    """
    who = group.numpy()
    order, sizes = who.argsort(kind="stable"), np.bincount(who, minlength=count)
    first = sizes.cumsum() - sizes
    found = []
    kind = np.searchsorted(_ends(sizes), sizes)
    for value in np.unique(kind):
        groups = np.flatnonzero(kind == value)
        n = int(sizes[groups].max())
        present = np.arange(n) < sizes[groups, None]
        place = np.where(present, first[groups, None] + np.arange(n), first[groups, None])
        rows = torch.from_numpy(order[place])
        there = torch.from_numpy(present)
        found.append(
            Bucket(
                groups=torch.from_numpy(groups),
                x=x[rows],
                z=z[rows],
                y=y[rows],
                trials=trials[rows],
                offset=offset[rows],
                present=there.double(),
            )
        )
    return found


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest size in each bucket, ascending."""
    each, counts = np.unique(sizes, return_counts=True)
    total = np.concatenate([[0], counts.cumsum()])  # groups before each size
    # least[i]: the smallest sum for the first i sizes, whose last bucket begins at first[i].
    least, first = np.zeros(len(each) + 1), np.zeros(len(each) + 1, dtype=np.int64)
    for i, size in enumerate(each.tolist(), start=1):
        sums = least[:i] + _PRICE + (total[i] - total[:i]) * size
        first[i] = sums.argmin()
        least[i] = sums[first[i]]
    ends, i = [], len(each)
    while i > 0:
        ends.append(each[i - 1])
        i = int(first[i])
    return np.array(ends[::-1])
