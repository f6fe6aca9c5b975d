"""θ = (β, entries of Λ, log dispersion), and how it is laid out in one vector.

Random effects of a group are b = Λu with u ~ N(0, I), so their covariance is ΛΛᵀ. Λ is lower
triangular in each block of correlated effects and 0 between blocks. Its entries are free: the
likelihood does not change if a column of Λ changes its sign, so a standard deviation of 0 is an
ordinary point of the parameter space, at which the score is 0, and not a boundary that the
logarithm of a standard deviation would never reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where everything is in θ.

    Args:
        fixed: p, the number of fixed effects.
        blocks: sizes of the blocks of correlated random effects.
        dispersion: whether the family has a dispersion.
    """

    fixed: int
    blocks: tuple[int, ...]
    dispersion: bool

    @property
    def random(self) -> int:
        """Q, the number of random effects of a group."""
        return sum(self.blocks)

    @property
    def size(self) -> int:
        """The length of θ."""
        return self.fixed + len(self.entries[0]) + int(self.dispersion)

    @cached_property
    def entries(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the entries of Λ that are free, row by row."""
        q = self.random
        allowed = torch.zeros(q, q, dtype=torch.bool)
        begin = 0
        for size in self.blocks:
            block = torch.ones(size, size, dtype=torch.bool).tril()
            allowed[begin : begin + size, begin : begin + size] = block
            begin += size
        row, column = allowed.nonzero(as_tuple=True)
        return row, column

    @cached_property
    def diagonal(self) -> Tensor:
        """Places in θ of the diagonal of Λ, (q,)."""
        row, column = self.entries
        return self.fixed + (row == column).nonzero()[:, 0]

    def beta(self, theta: Tensor) -> Tensor:
        """β."""
        return theta[: self.fixed]

    def factor(self, theta: Tensor) -> Tensor:
        """Λ, (q, q)."""
        found = theta.new_zeros(self.random, self.random)
        found[self.entries] = theta[self.fixed : self.fixed + len(self.entries[0])]
        return found

    def log_dispersion(self, theta: Tensor) -> Tensor:
        """Log dispersion, a number; 0 where there is none."""
        return theta[-1] if self.dispersion else theta.new_zeros(())

    def with_positive_diagonal(self, theta: Tensor) -> Tensor:
        """The same model with columns of Λ that have a positive diagonal."""
        sign = torch.where(theta[self.diagonal] < 0.0, -1.0, 1.0)
        found = theta.clone()
        entries = slice(self.fixed, self.fixed + len(self.entries[0]))
        found[entries] = theta[entries] * sign[self.entries[1]]
        return found

    def sds(self, theta: Tensor) -> Tensor:
        """Standard deviations of the random effects, (q,)."""
        return self.factor(theta).square().sum(1).sqrt()
