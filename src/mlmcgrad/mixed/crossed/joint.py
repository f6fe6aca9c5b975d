"""The random effects of all groups as one vector: its density with the response, and its mode.

u ~ N(0, I) holds the standardised effects of the groups of all factors, one after the other, of
dimension D = Σ_f groups_f · q_f. Each row picks the block of its group from every factor,

    η_i = x_iᵀβ + offset_i + Σ_f z_{f,i}ᵀ Λ_f u_{f, g_f(i)},      in short η = Xβ + offset + ZΛ̃u,

with Λ̃ block diagonal, Λ_f for each group of f. Z is sparse, with Σ_f q_f numbers per row. θ is laid
out as if the effects of all factors were side by side: Λ of `Layout` is block diagonal.

    f(u) = log p_θ(y, u),      ∇f = Λ̃ᵀZᵀr − u,      −∇²f ≈ H = I + Λ̃ᵀZᵀWZΛ̃,

where r and W are the slope and the (expected) curvature of log p in η. The mode is found by
Newton's method with a dense Cholesky factor, halving steps that go downhill. N(mode, H^{-1}) is
Laplace's approximation of p_θ(u | y).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mlmcgrad.mixed.design import Design
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.parameters import Layout

LARGEST = 3000  # D: its matrix takes 72 MB, and a Cholesky factor of it about a second
_LOG_2PI = math.log(2.0 * math.pi)
_STEPS, _HALVINGS = 60, 30
_ENOUGH = 1e-20  # Newton's decrement at the mode, small because modes are differenced in θ


@dataclass(frozen=True)
class Span:
    """The position of a factor: its effects among the columns of Z, its groups in u."""

    effects: slice  # of the q columns
    latent: slice  # of the D entries of u
    groups: int


@final
class Joint:
    """The density of the response and all random effects, log p_θ(y, u).

    Args:
        design: the data.
        family: the family of the response.

    Attributes:
        layout: the layout of θ.
        dimension: D.
        spans: the position of each factor.
        place: the position in u of the columns of a row, (n, q) int64.
    """

    def __init__(self, design: Design, family: Family) -> None:
        effects = design.effects
        self.dimension = sum(len(e.groups) * len(e.terms) for e in effects)
        if self.dimension > LARGEST:
            counts = ", ".join(f"{len(e.groups)} × {len(e.terms)} of {e.factor}" for e in effects)
            raise ValueError(
                f"design must have at most {LARGEST} random effects with several grouping factors, "
                f"got {self.dimension} ({counts}): their matrix is dense; make the factor "
                "with the fewest groups fixed, or keep one factor, for which there is no limit"
            )
        self.layout = Layout.of(design, family)
        self.family, self.x, self.offset = family, design.fixed, design.offset
        self.y, self.trials = design.y[:, None], design.trials[:, None]
        self.z = torch.cat([e.columns for e in effects], 1)  # (n, q)
        self.spans, places, column, begin = list[Span](), [], 0, 0
        for e in effects:
            q, size = len(e.terms), len(e.groups) * len(e.terms)
            span = Span(slice(column, column + q), slice(begin, begin + size), len(e.groups))
            self.spans.append(span)
            places.append(begin + e.index[:, None] * q + torch.arange(q))
            column, begin = column + q, begin + size
        self.place = torch.cat(places, 1)
        n, q = self.z.shape
        where = torch.stack([torch.arange(n).repeat_interleave(q), self.place.reshape(-1)])
        wide = torch.sparse_coo_tensor(
            where, self.z.reshape(-1), (n, self.dimension), check_invariants=True
        )
        self._wide, self._tall = wide.coalesce(), wide.T.coalesce()

    def predictor(self, theta: Tensor, u: Tensor) -> Tensor:
        """Return η, (n, m), of columns u, (D, m)."""
        base = (self.x @ self.layout.beta(theta) + self.offset)[:, None]
        return base + self._wide @ self.scaled(self.layout.factor(theta), u)

    def scaled(self, factor: Tensor, u: Tensor) -> Tensor:
        """Return Λ̃u, (D, m), for Λ, (q, q), and columns u."""
        parts = [factor[s.effects, s.effects] @ self.blocks(s, u) for s in self.spans]
        return torch.cat([part.reshape(-1, u.shape[1]) for part in parts])

    def blocks(self, span: Span, u: Tensor) -> Tensor:
        """Return the effects of a factor, (groups, q_f, m), of columns u, (D, m)."""
        return u[span.latent].reshape(span.groups, -1, u.shape[1])

    def slopes(self, theta: Tensor, eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p(y_i | η_i), the slopes r and the curvatures W in η, (n, m) each."""
        return self.family.slopes(eta, self.y, self.trials, self.layout.log_dispersion(theta))

    def density(self, theta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(y, u), (m,), and its gradient in u, (D, m), of columns u."""
        value, slope, _ = self.slopes(theta, self.predictor(theta, u))
        constant = 0.5 * self.dimension * _LOG_2PI
        gradient = self.scaled(self.layout.factor(theta).T, self._tall @ slope) - u
        return value.sum(0) - 0.5 * u.square().sum(0) - constant, gradient

    def scores(self, theta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return ∇_θ log p(y, u), (m, θ), and the gradient in u, (D, m), of columns u.

        With r the slopes in η: ∇_β = Xᵀr, ∇_Λ = Σ_g (Zᵀr)_g u_gᵀ at its free entries, and the sum
        of the slopes in log φ.
        """
        eta = self.predictor(theta, u)
        _, slope, _ = self.slopes(theta, eta)
        gathered = self._tall @ slope
        q, m = self.layout.random, u.shape[1]
        of_factor = u.new_zeros(m, q, q)
        for s in self.spans:
            left, right = self.blocks(s, gathered), self.blocks(s, u)
            of_factor[:, s.effects, s.effects] = torch.einsum("gam,gbm->mab", left, right)
        row, column = self.layout.entries
        found = [slope.T @ self.x, of_factor[:, row, column]]
        if self.layout.dispersion:
            found.append(self.dispersion_slope(theta, eta).sum(0)[:, None])
        return torch.cat(found, 1), self.scaled(self.layout.factor(theta).T, gathered) - u

    def dispersion_slope(self, theta: Tensor, eta: Tensor) -> Tensor:
        """Return ∂ log p(y_i | η_i)/∂ log φ, (n, m)."""
        dispersion = self.layout.log_dispersion(theta)
        return self.family.dispersion_slope(eta, self.y, self.trials, dispersion)


@dataclass(frozen=True)
class Laplace:
    """Laplace's approximation N(mode, CCᵀ) of p_θ(u | y)."""

    joint: Joint
    theta: Tensor
    mode: Tensor  # (D,)
    root: Tensor  # (D, D): C with CCᵀ = H^{-1}, upper triangular

    def at(self, x: Tensor) -> Tensor:
        """Return the columns u = mode + Cx, (D, m), of whitened rows x, (m, D)."""
        return self.mode[:, None] + self.root @ x.T

    def density(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(y, u), (m,), and its gradient in u, (D, m), of whitened rows x."""
        return self.joint.density(self.theta, self.at(x))

    @property
    def log_volume(self) -> Tensor:
        """Log det C."""
        return self.root.diagonal().log().sum()


def laplace(joint: Joint, theta: Tensor, start: Tensor | None = None) -> Laplace:
    """Find Laplace's approximation at θ, by Newton's method from `start`, (D,); 0 by default."""
    mode, lower, _ = newton(joint, theta, start)
    # H = RRᵀ: C = R^{-ᵀ}.
    eye = torch.eye(joint.dimension, dtype=theta.dtype)
    root = torch.linalg.solve_triangular(lower.mT, eye, upper=True)
    # In row-major order its products with states are several times as fast.
    return Laplace(joint, theta, mode, root.contiguous())


def newton(
    joint: Joint, theta: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mode, (D,); R, lower triangular, with RRᵀ = H; and log p(y, mode)."""
    u = theta.new_zeros(joint.dimension) if start is None else start
    columns = joint.z @ joint.layout.factor(theta)  # (n, q): those of ZΛ̃
    value, gradient = joint.density(theta, u[:, None])
    for _ in range(_STEPS):
        _, _, curvature = joint.slopes(theta, joint.predictor(theta, u[:, None]))
        lower = torch.linalg.cholesky(_hessian(joint, columns, curvature))
        step = torch.cholesky_solve(gradient, lower)[:, 0]
        if float(gradient[:, 0] @ step) < _ENOUGH:
            break
        size = 1.0
        for _ in range(_HALVINGS):
            found = joint.density(theta, (u + size * step)[:, None])
            if float(found[0]) >= float(value) - 1e-12 * abs(float(value)):
                break
            size *= 0.5
        u, (value, gradient) = u + size * step, found
    return u, lower, value[0]


def _hessian(joint: Joint, columns: Tensor, curvature: Tensor) -> Tensor:
    """Return H; the rows of a pair of groups add up at its position."""
    d = joint.dimension
    place = joint.place[:, :, None] * d + joint.place[:, None, :]
    products = columns[:, :, None] * (curvature * columns)[:, None, :]
    found = torch.bincount(place.reshape(-1), products.reshape(-1), d * d).reshape(d, d)
    found.diagonal().add_(1.0)
    return found
