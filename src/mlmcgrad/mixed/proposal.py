"""Where the random effects of each group are: mode, curvature, and draws around it.

For one group, with η = Xβ + offset + ZΛu,

    f(u) = Σ_i log p(y_i | η_i) − ½‖u‖²,      ∇f = ΛᵀZᵀr − u,      −∇²f ≈ H = I + ΛᵀZᵀWZΛ,

r and W the slope and the (expected) curvature of log p in η. Newton's method for all groups at
once, from where the last call ended. The proposal is u = mode + Ct with CCᵀ = H^{-1} and
independent coordinates of t, Student's with 4 degrees of freedom: heavier tails than the target,
and a distribution function with an inverse in closed form,

    t(p) = sign(p − ½) · 2 √(cos(arccos(√a)/3)/√a − 1),      a = 4p(1 − p).

So the k draws of a block are k evenly spread points p, moved all together by one uniform shift:
each has the law of the proposal, blocks are independent, and the mean over a block has far less
variance than that of k independent draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from mlmcgrad.mixed.buckets import Bucket
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.parameters import Layout

_LEAST = 1e-15
_DIFFERENCE = 1e-3
_STEPS, _HALVINGS = 30, 8
_ENOUGH = 1e-4  # Newton's decrement at which a proposal is good enough


@dataclass(frozen=True)
class Proposal:
    """Student's t around the mode of each group of a bucket, and slopes there."""

    mode: Tensor  # (g, q)
    root: Tensor  # (g, q, q): C with CCᵀ = H^{-1}
    slope: Tensor  # (g, n): r at the mode
    curvature: Tensor  # (g, n): W at the mode
    of_phi: Tensor  # (g, 1 + q, q): derivatives of ∂ log p/∂ log φ in u at the mode, see `score.py`

    def select(self, which: Tensor | slice) -> Proposal:
        """Some of the groups."""
        return Proposal(*(tensor[which] for tensor in vars(self).values()))

    def draw(
        self, owner: Tensor, candidates: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Independent blocks of draws.

        Args:
            owner: the group of each block, (b,).
            candidates: k, draws of a block.
            generator: source of the randomness.

        Returns:
            u, (b, k, q), and log q(u), (b, k), all constants included.
        """
        mode, root = self.mode[owner], self.root[owner]
        q = mode.shape[1]
        shift = torch.rand(len(owner), 1, q, dtype=torch.float64, generator=generator)
        p = (shift + lattice(candidates, q)).frac_().clamp_(_LEAST, 1.0 - _LEAST)
        t = quantile(p)
        u = torch.baddbmm(mode[:, None], t, root.mT)
        log_volume = root.diagonal(dim1=1, dim2=2).log().sum(1) - q * math.log(0.375)
        log_q = -2.5 * torch.log1p(0.25 * t.square()).sum(-1)
        return u, log_q - log_volume[:, None]


@cache
def lattice(points: int, dimension: int) -> Tensor:
    """Evenly spread points in the unit cube, (points, dimension).

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
    """The inverse of the distribution function of Student's t with 4 degrees of freedom."""
    root = (4.0 * p * (1.0 - p)).sqrt()
    size = 2.0 * ((root.clamp(max=1.0).acos() / 3.0).cos() / root - 1.0).clamp(min=0.0).sqrt()
    return torch.where(p < 0.5, -size, size)


def propose(
    bucket: Bucket, layout: Layout, family: Family, theta: Tensor, start: Tensor | None = None
) -> Proposal:
    """Find the mode and the curvature of every group.

    Args:
        bucket: the groups.
        layout: of θ.
        family: of the response.
        theta: θ.
        start: where Newton's method begins, (g, q); 0 by default.
    """
    base, columns = predictor(bucket, layout, theta)
    log_dispersion = layout.log_dispersion(theta)
    u = base.new_zeros(len(bucket), layout.random) if start is None else start
    eye = torch.eye(layout.random, dtype=base.dtype)

    def terms(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """f, r and W."""
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
        if float((gradient * step).sum(1).max()) < _ENOUGH:
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
        of_phi = _of_phi(
            bucket, family, base + (columns @ u[..., None])[..., 0], columns, log_dispersion
        )
    return Proposal(u, root, slope, curvature, of_phi)


def _of_phi(
    bucket: Bucket, family: Family, eta: Tensor, columns: Tensor, log_dispersion: Tensor
) -> Tensor:
    """First and second derivatives in u of Σ ∂ log p/∂ log φ, (g, 1 + q, q), by differences."""
    below, here, above = (
        family.dispersion_slope(eta + h, bucket.y, bucket.trials, log_dispersion) * bucket.present
        for h in (-_DIFFERENCE, 0.0, _DIFFERENCE)
    )
    first = (above - below) / (2.0 * _DIFFERENCE)
    second = (above - 2.0 * here + below) / _DIFFERENCE**2
    gradient = first[:, None] @ columns
    return torch.cat([gradient, columns.mT @ (second[..., None] * columns)], 1)


def predictor(bucket: Bucket, layout: Layout, theta: Tensor) -> tuple[Tensor, Tensor]:
    """η is affine in u: Xβ + offset, (g, n), and ZΛ, (g, n, q)."""
    return bucket.x @ layout.beta(theta) + bucket.offset, bucket.z @ layout.factor(theta)
