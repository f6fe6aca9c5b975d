"""Means of independent simulations of several targets, and what their noise cannot explain.

Where data rows differ each has its own target, and a mean over the rows is what is estimated. Its
noise is that within rows: with n_s simulations of target s, n in total,

    Cov = Σ_s n_s/(n_s − 1) Σ_{c in s} (H_c − H̄_s)(H_c − H̄_s)ᵀ / n²,

with n − (number of targets) degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.hotelling import fisher_tail, hotelling, student_tail
from mlmcgrad.kernels.base import Context, tensors_in

_ROUNDING = 1e-6  # of the size of a number: differences below are none
_PER_COORDINATE = 4  # degrees of freedom of a covariance matrix that is inverted


def targets(context: Context, rows: int) -> Tensor:
    """The number of the target of each row: rows with the same context have the same, (rows,)."""
    columns = [t.detach().reshape(len(t), -1).double().cpu() for t in tensors_in(context)]
    if not columns:
        return torch.zeros(rows, dtype=torch.int64)
    return torch.unique(torch.cat(columns, 1), dim=0, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean with its noise."""

    value: Tensor  # (d,)
    spread: Tensor  # (n, d): spreadᵀ spread is the covariance of the mean
    freedom: int
    rounding: Tensor  # (d,): differences of this size are none

    @classmethod
    def of(cls, x: Tensor, target: Tensor, size: Tensor | None = None) -> Mean:
        """The mean of rows.

        Args:
            x: a row for each simulation, (n, d).
            target: of each simulation, (n,).
            size: of the numbers that x is a difference of, (d,); by default of x itself.
        """
        count = torch.bincount(target)
        sums = torch.zeros(len(count), x.shape[1], dtype=x.dtype).index_add(0, target, x)
        centred = x - (sums / count.clamp(min=1)[:, None])[target]
        scale = (count / (count - 1).clamp(min=1)).sqrt()[target]
        freedom = int((count - 1).clamp(min=0).sum())
        rounding = _ROUNDING * (size_of(x) if size is None else size)
        return cls(x.mean(0), centred * scale[:, None] / len(x), freedom, rounding)

    def minus(self, other: Mean) -> Mean:
        """The difference of two means from independent simulations."""
        return Mean(
            self.value - other.value,
            torch.cat([self.spread, other.spread]),
            min(self.freedom, other.freedom),
            torch.maximum(self.rounding, other.rounding),
        )

    @property
    def variance(self) -> Tensor:
        """Of the mean, with that of rounding, (d,)."""
        return self.spread.square().sum(0) + self.rounding.square()

    @property
    def t(self) -> Tensor:
        """The mean in standard errors, (d,); 0 for what is never anything but 0."""
        return torch.where(self.value == 0.0, 0.0, self.value / self.variance.sqrt())

    def significance(self) -> float:
        """P-value of the hypothesis that all coordinates are 0, by the largest of them."""
        largest = float(self.t.abs().max())
        return min(1.0, len(self.value) * student_tail(largest, self.freedom))

    def against(self, value: Tensor) -> float:
        """P-value of the hypothesis that this is the mean, by Hotelling's test.

        With few simulations for the number of coordinates, of fixed projections of it.
        """
        deviation, spread = self.value - value, self.spread
        scale = self.variance.sqrt()
        used = scale > 0.0
        if not bool(used.any()):
            return 1.0 if bool((deviation == 0.0).all()) else 0.0
        deviation, spread = deviation[used] / scale[used], spread[:, used] / scale[used]
        most = max(1, self.freedom // _PER_COORDINATE)
        if len(deviation) > most:
            directions = projection(len(deviation), most)
            deviation, spread = deviation @ directions, spread @ directions
        # Coordinates that depend on each other have no inverse without what rounding leaves.
        covariance = spread.T @ spread + _ROUNDING * torch.eye(len(deviation)).to(spread)
        return hotelling(deviation, covariance, self.freedom).p_value


def excess(first: Tensor, second: Tensor, target: Tensor) -> tuple[float, float]:
    """Whether simulations remember where they were: the variance between them beside that within.

    Args:
        first: means over one part of each simulation, (n, k).
        second: and over a later part as long.
        target: of each simulation, (n,).

    Returns:
        The largest ratio of Var(first + second) to Var(first − second), which is 1 if the parts are
        independent and infinite if no simulation ever moves; and its p-value.
    """
    size = size_of(torch.cat([first, second]))
    sums, gaps = Mean.of(first + second, target, size), Mean.of(first - second, target, size)
    between = sums.variance
    ratio = float(torch.where(between > 0.0, between / gaps.variance, 1.0).max())
    return ratio, min(1.0, len(between) * fisher_tail(ratio, sums.freedom, sums.freedom))


def size_of(x: Tensor) -> Tensor:
    """Root mean square of each column."""
    return x.square().mean(0).sqrt()


def projection(dimension: int, directions: int) -> Tensor:
    """Fixed random directions, (dimension, directions)."""
    shape, rng = (dimension, directions), torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=torch.float64, generator=rng) / dimension**0.5
