"""Groups side by side in buckets, and for each group a proposal around its mode.

Groups have different numbers of rows. To process all groups at once, they are put into buckets of
groups of similar size, and within a bucket padded to the largest group with absent rows (`present`
is 0). Each bucket costs as much as _PRICE rows, for the calls that process it; the buckets minimise
the total cost. Small data are one bucket, and in large data there is little padding.

For one group, with η = Xβ + offset + ZΛu,

    f(u) = Σ_i log p(y_i | η_i) − ½‖u‖²,      ∇f = ΛᵀZᵀr − u,      −∇²f ≈ H = I + ΛᵀZᵀWZΛ,

where r and W are the slope and the (expected) curvature of log p in η. Newton's method finds the
modes of all groups at once, from those of the last call. The proposal is u = mode + Ct with
CCᵀ = H^{-1} and independent coordinates of t, Student's with 4 degrees of freedom: its tails are
heavier than the target's, and its quantile function has a closed form,

    t(p) = sign(p − ½) · 2 √(cos(arccos(√a)/3)/√a − 1),      a = 4p(1 − p).

The k draws of a block are k evenly spread points p, all moved by one uniform shift. Each draw has
the law of the proposal, blocks are independent, and the mean over a block has far less variance
than that of k independent draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.parameters import Layout

_PRICE = 500  # of a bucket, in rows
_LEAST = 1e-15
_DIFFERENCE = 1e-3
_STEPS, _HALVINGS = 30, 8
_ENOUGH = 1e-4  # Newton's decrement at which a proposal is good enough
_EXACT = 1e-20


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

    def __getitem__(self, which: Tensor) -> Bucket:
        """Return some of the groups."""
        return Bucket(*(tensor[which] for tensor in vars(self).values()))


def buckets(design: Design) -> list[Bucket]:
    """Put the rows of a design with one grouping factor into buckets."""
    (effects,) = design.effects
    who = effects.index.numpy()
    order, sizes = who.argsort(kind="stable"), np.bincount(who)
    first = sizes.cumsum() - sizes
    found = []
    kind = np.searchsorted(_ends(sizes), sizes)
    for value in np.unique(kind):
        groups = np.flatnonzero(kind == value)
        n = int(sizes[groups].max())
        present = np.arange(n) < sizes[groups, None]
        place = np.where(present, first[groups, None] + np.arange(n), first[groups, None])
        rows = torch.from_numpy(order[place])
        columns = (design.fixed, effects.columns, design.y, design.trials, design.offset)
        parts = [torch.from_numpy(groups), *(column[rows] for column in columns)]
        parts.append(torch.from_numpy(present).double())
        found.append(Bucket(*parts))
    return found


@dataclass(frozen=True)
class Proposal:
    """Student's t around the mode of each group of a bucket, and slopes there."""

    bucket: Bucket
    mode: Tensor  # (g, q)
    root: Tensor  # (g, q, q): C with CCᵀ = H^{-1}
    slope: Tensor  # (g, n): r at the mode
    curvature: Tensor  # (g, n): W at the mode
    of_phi: Tensor  # (g, 1 + q, q): derivatives of ∂ log p/∂ log φ in u at the mode

    def __len__(self) -> int:
        return len(self.bucket)

    def __getitem__(self, which: Tensor) -> Proposal:
        """Return the proposals of some of the groups."""
        return Proposal(*(part[which] for part in vars(self).values()))

    def draw(
        self, owner: Tensor, candidates: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw independent blocks of k candidates for the groups `owner`, (b,).

        Returns:
            u, (b, k, q), and log q(u), (b, k), all constants included.
        """
        return self.at(self.quantiles(len(owner), candidates, generator), owner)

    def quantiles(self, blocks: int, candidates: int, generator: torch.Generator) -> Tensor:
        """Draw independent blocks of k candidates t, (blocks, k, q)."""
        q = self.mode.shape[1]
        shift = torch.rand(blocks, 1, q, dtype=torch.float64, generator=generator)
        p = (shift + lattice(candidates, q)).frac_().clamp_(_LEAST, 1.0 - _LEAST)
        return quantile(p)

    def at(self, t: Tensor, owner: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return u = mode + Ct, (b, k, q), and log q(u), (b, k), for the groups `owner`, (b,)."""
        mode, root = self.mode[owner], self.root[owner]
        q = mode.shape[1]
        u = torch.baddbmm(mode[:, None], t, root.mT)
        log_volume = root.diagonal(dim1=1, dim2=2).log().sum(1) - q * math.log(0.375)
        log_q = -2.5 * torch.log1p(0.25 * t.square()).sum(-1)
        return u, log_q - log_volume[:, None]


@cache
def lattice(points: int, dimension: int) -> Tensor:
    """Return evenly spread points in the unit cube, (points, dimension).

    The first coordinate is j/k, the others are multiples of powers of the root ρ of
    ρ^{d} = ρ + 1, which spread evenly for any number of points (Roberts' sequence).
    """
    j = torch.arange(points, dtype=torch.float64)
    ratio = 2.0
    for _ in range(60):
        ratio = (1.0 + ratio) ** (1.0 / dimension)
    powers = [ratio**-i for i in range(1, dimension)]
    return torch.stack([j / points, *((j * power).frac() for power in powers)], 1)


def quantile(p: Tensor) -> Tensor:
    """Return quantiles of Student's t distribution with 4 degrees of freedom."""
    root = (4.0 * p * (1.0 - p)).sqrt()
    size = 2.0 * ((root.clamp(max=1.0).acos() / 3.0).cos() / root - 1.0).clamp(min=0.0).sqrt()
    return torch.where(p < 0.5, -size, size)


def propose(
    bucket: Bucket,
    layout: Layout,
    family: Family,
    theta: Tensor,
    start: Tensor | None = None,
    exact: bool = False,
) -> Proposal:
    """Find the mode and the curvature of every group, by Newton's method from `start`, (g, q).

    An exact mode, to rounding, may be differenced in θ.
    """
    base, columns = predictor(bucket, layout, theta)
    log_dispersion = layout.log_dispersion(theta)
    u = base.new_zeros(len(bucket), layout.random) if start is None else start
    eye = torch.eye(layout.random, dtype=base.dtype)

    def terms(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return f, r and W."""
        eta = base + (columns @ u[..., None])[..., 0]
        value, slope, curvature = family.slopes(eta, bucket.y, bucket.trials, log_dispersion)
        value = (value * bucket.present).sum(1) - 0.5 * u.square().sum(1)
        return value, slope * bucket.present, curvature * bucket.present

    value, slope, curvature = terms(u)
    for _ in range(_STEPS):
        hessian = eye + columns.mT @ (curvature[..., None] * columns)
        gradient = (columns.mT @ slope[..., None])[..., 0] - u
        lower = torch.linalg.cholesky(hessian)
        step = torch.cholesky_solve(gradient[..., None], lower)[..., 0]
        if float((gradient * step).sum(1).max()) < (_EXACT if exact else _ENOUGH):
            break
        size = torch.ones_like(value)
        for _ in range(_HALVINGS):
            u_new = u + size[:, None] * step
            found = terms(u_new)
            worse = ~(found[0] >= value - 1e-12 * value.abs())
            if not bool(worse.any()):
                break
            size = torch.where(worse, 0.5 * size, size)
        u, (value, slope, curvature) = u_new, found
    # H = RRᵀ: C = R^{-ᵀ}.
    root = torch.linalg.solve_triangular(lower.mT, eye.expand_as(lower), upper=True)
    of_phi = u.new_zeros(len(u), 1 + layout.random, layout.random)
    if layout.dispersion:
        eta = base + (columns @ u[..., None])[..., 0]
        of_phi = _of_phi(bucket, family, eta, columns, log_dispersion)
    return Proposal(bucket, u, root, slope, curvature, of_phi)


def _of_phi(
    bucket: Bucket, family: Family, eta: Tensor, columns: Tensor, log_dispersion: Tensor
) -> Tensor:
    """Differentiate Σ ∂ log p/∂ log φ twice in u by differences, (g, 1 + q, q)."""
    below, here, above = (
        family.dispersion_slope(eta + h, bucket.y, bucket.trials, log_dispersion) * bucket.present
        for h in (-_DIFFERENCE, 0.0, _DIFFERENCE)
    )
    first = (above - below) / (2.0 * _DIFFERENCE)
    second = (above - 2.0 * here + below) / _DIFFERENCE**2
    gradient = first[:, None] @ columns
    return torch.cat([gradient, columns.mT @ (second[..., None] * columns)], 1)


def predictor(bucket: Bucket, layout: Layout, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return Xβ + offset, (g, n), and ZΛ, (g, n, q); η is affine in u."""
    return bucket.x @ layout.beta(theta) + bucket.offset, bucket.z @ layout.factor(theta)


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest size in each bucket, ascending."""
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
