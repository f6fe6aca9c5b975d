"""The parameter vector θ = (β, entries of Λ, log dispersion), its units, and its start.

Random effects of a group are b = Λu with u ~ N(0, I), so their covariance is ΛΛᵀ. Λ is lower
triangular in each block of correlated effects and 0 between blocks. Its entries are free, because
the likelihood does not change if a column of Λ changes its sign. So a standard deviation of 0 is an
interior point of the parameter space, with score 0. The logarithm of a standard deviation would
never reach it.

The search uses units in which the likelihood is well conditioned: the fixed columns are made
orthonormal, X = QR with QᵀQ = rows · I, the random columns have mean square 1, and a gaussian
response has the standard deviation 1. Its result θ′ is converted back by θ = Tθ′ + t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family, Gaussian

_STEPS = 25
_LARGEST = 8.0  # linear predictor that the search starts with, unless a response asks for more
_RIDGE = 1e-6


@dataclass(frozen=True)
class Layout:
    """The positions of all parameters in θ."""

    fixed: int  # p, the number of fixed effects
    blocks: tuple[int, ...]  # sizes of the blocks of correlated random effects
    dispersion: bool  # whether the family has one

    @classmethod
    def of(cls, design: Design, family: Family) -> Layout:
        """Return the layout of a model; the effects of all factors are side by side."""
        blocks = tuple(size for effects in design.effects for size in effects.blocks)
        return cls(design.fixed.shape[1], blocks, dispersion=family.dispersion is not None)

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
        """Rows and columns of the free entries of Λ, row by row."""
        blocks = [torch.ones(size, size).tril() for size in self.blocks]
        row, column = torch.block_diag(*blocks).nonzero(as_tuple=True)
        return row, column

    @cached_property
    def diagonal(self) -> Tensor:
        """Positions in θ of the diagonal of Λ, (q,)."""
        row, column = self.entries
        return self.fixed + (row == column).nonzero()[:, 0]

    @property
    def of_factor(self) -> slice:
        """Positions in θ of the entries of Λ."""
        return slice(self.fixed, self.fixed + len(self.entries[0]))

    def beta(self, theta: Tensor) -> Tensor:
        """Return β."""
        return theta[: self.fixed]

    def factor(self, theta: Tensor) -> Tensor:
        """Return Λ, (q, q)."""
        found = theta.new_zeros(self.random, self.random)
        found[self.entries] = theta[self.of_factor]
        return found

    def log_dispersion(self, theta: Tensor) -> Tensor:
        """Return the log dispersion, a scalar; 0 if the family has none."""
        return theta[-1] if self.dispersion else theta.new_zeros(())

    def with_positive_diagonal(self, theta: Tensor) -> Tensor:
        """Return the θ of the same model in which the diagonal of Λ is not negative."""
        sign = torch.where(theta[self.diagonal] < 0.0, -1.0, 1.0)
        found = theta.clone()
        found[self.of_factor] *= sign[self.entries[1]]
        return found

    def sds(self, theta: Tensor) -> Tensor:
        """Return the standard deviations of the random effects, (q,)."""
        return self.factor(theta).square().sum(1).sqrt()


@dataclass(frozen=True)
class Scale:
    """The map from the units of the search to those of the user, θ = Tθ′ + t."""

    matrix: Tensor  # T, (θ, θ)
    shift: Tensor  # t, (θ,)
    log_volume: float  # added to the log-likelihood
    columns: tuple[Tensor, ...]  # for each factor, the divisors of its random effects, (q,)

    def point(self, theta: Tensor) -> Tensor:
        """Return θ, given θ′."""
        return self.matrix @ theta + self.shift

    def back(self, theta: Tensor) -> Tensor:
        """Return θ′, given θ."""
        return torch.linalg.solve(self.matrix, theta - self.shift)

    def covariance(self, covariance: Tensor) -> Tensor:
        """Return the covariance of θ, given that of θ′."""
        return self.matrix @ covariance @ self.matrix.T


def scaled(design: Design, family: Family) -> tuple[Design, Scale]:
    """Return the design in the units of the search, and the map back."""
    rows, log_volume = len(design.y), 0.0
    weights = design.weights if isinstance(family, Gaussian) else None
    if weights is not None:
        # With variance σ²/w, the rows times √w have the variance σ²; the density gains √w.
        root, log_volume = weights.sqrt(), 0.5 * float(weights.log().sum())
        design = replace(
            design,
            y=design.y * root,
            offset=design.offset * root,
            fixed=design.fixed * root[:, None],
            effects=tuple(replace(e, columns=e.columns * root[:, None]) for e in design.effects),
        )
    unit = float(design.y.std()) if isinstance(family, Gaussian) else 1.0
    q, r = torch.linalg.qr(design.fixed)
    columns = torch.cat([effects.columns for effects in design.effects], 1)
    sizes = columns.square().mean(0).sqrt()
    layout = Layout.of(design, family)
    matrix = torch.eye(layout.size, dtype=torch.float64)
    matrix.diagonal()[layout.of_factor] = unit / sizes[layout.entries[0]]
    matrix[: layout.fixed, : layout.fixed] = torch.linalg.inv(r) * rows**0.5 * unit
    shift = torch.zeros(layout.size, dtype=torch.float64)
    if layout.dispersion and unit != 1.0:
        shift[-1] = math.log(unit)
    parts = sizes.split([effects.columns.shape[1] for effects in design.effects])
    effects = tuple(
        replace(e, columns=e.columns / size) for e, size in zip(design.effects, parts, strict=True)
    )
    new = replace(
        design, y=design.y / unit, offset=design.offset / unit, fixed=q * rows**0.5, effects=effects
    )
    return new, Scale(
        matrix, shift, log_volume - rows * math.log(unit), tuple(s / unit for s in parts)
    )


def start(design: Design, family: Family, layout: Layout) -> Tensor:
    """Return the first θ: the model without random effects, and standard deviations of about 1.

    The design has the units of the search.
    """
    x, offset = design.fixed, design.offset
    log_dispersion = torch.zeros((), dtype=torch.float64)
    target = family.start(design.y, design.trials) - offset
    beta = x.T @ target / len(target)  # least squares, since XᵀX = rows · I
    largest = max(_LARGEST, float(target.abs().max()))
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    for _ in range(_STEPS):
        eta = (x @ beta + offset).clamp(-largest, largest)
        _, slope, curvature = family.slopes(eta, design.y, design.trials, log_dispersion)
        weighted = x.T @ (curvature[:, None] * x)
        step = torch.linalg.solve(weighted + _RIDGE * weighted.diagonal().mean() * eye, x.T @ slope)
        new = beta + step
        reached = float((x @ new).abs().max())
        if reached > largest:  # separation, or a bad step
            beta = new * (largest / reached)
            break
        beta = new
        if float(step.abs().max()) < 1e-6:
            break
    theta = torch.zeros(layout.size, dtype=torch.float64)
    theta[: layout.fixed] = beta
    theta[layout.diagonal] = 0.5
    if isinstance(family, Gaussian):
        residual = design.y - x @ beta - offset
        theta[-1] = (0.8 * residual.std()).log()
        theta[layout.diagonal] = 0.5 * residual.std()
    return theta
