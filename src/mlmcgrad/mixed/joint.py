"""Several grouping factors, nested or crossed: the random effects of all groups as one vector.

u ~ N(0, I) holds the standardised effects of the groups of all factors, one after the other, of
dimension D = Σ_f groups_f · q_f. Each row picks the block of its group from every factor,

    η_i = x_iᵀβ + offset_i + Σ_f z_{f,i}ᵀ Λ_f u_{f, g_f(i)},      in short η = Xβ + offset + ZΛ̃u,

with Λ̃ block diagonal, Λ_f for each group of f. Z is sparse, Σ_f q_f numbers in a row. θ is laid out
as if the effects of all factors were side by side: Λ of `Layout` is block diagonal over factors.
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


@dataclass(frozen=True)
class Span:
    """Where a factor is: its effects among the columns of Z's blocks, its groups in u."""

    effects: slice  # of the q columns
    latent: slice  # of the D entries of u
    groups: int


@final
class Joint:
    """The density of the response and all random effects, log p_θ(y, u).

    Args:
        design: the data.
        family: of the response.

    Attributes:
        layout: what θ holds.
        dimension: D.
        spans: where each factor is.
        place: where in u the columns of a row are, (n, q) int64.
    """

    def __init__(self, design: Design, family: Family) -> None:
        effects = design.effects
        if not effects:
            raise ValueError("design must have a grouping factor, got none; add (1 | g)")
        self.dimension = sum(len(e.groups) * len(e.terms) for e in effects)
        if self.dimension > LARGEST:
            counts = ", ".join(f"{len(e.groups)} × {len(e.terms)} of {e.factor}" for e in effects)
            raise ValueError(
                f"design must have at most {LARGEST} random effects with several grouping factors, "
                f"got {self.dimension} ({counts}): their matrix is dense; take the factor with "
                "fewest groups as fixed, or keep one factor, for which there is no limit"
            )
        blocks = tuple(size for e in effects for size in e.blocks)
        self.layout = Layout(design.fixed.shape[1], blocks, family.dispersion is not None)
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
        row = torch.arange(n)[:, None].expand(n, q)
        where = torch.stack([row.reshape(-1), self.place.reshape(-1)])
        self._wide = _sparse(where, self.z, (n, self.dimension))
        self._tall = _sparse(where.flip(0), self.z, (self.dimension, n))

    def base(self, theta: Tensor) -> Tensor:
        """Xβ + offset, (n, 1)."""
        return (self.x @ self.layout.beta(theta) + self.offset)[:, None]

    def spread(self, theta: Tensor, u: Tensor) -> Tensor:
        """ZΛ̃u, (n, m), for columns u, (D, m)."""
        return self._wide @ self.scaled(theta, u)

    def gathered(self, rows: Tensor) -> Tensor:
        """Zᵀ times (n, m): (D, m)."""
        return self._tall @ rows

    def scaled(self, theta: Tensor, u: Tensor, transposed: bool = False) -> Tensor:
        """Λ̃ or Λ̃ᵀ times (D, m)."""
        factor = self.layout.factor(theta)
        if transposed:
            factor = factor.T
        parts = [factor[s.effects, s.effects] @ self.blocks(s, u) for s in self.spans]
        return torch.cat([part.reshape(-1, u.shape[1]) for part in parts])

    def blocks(self, span: Span, u: Tensor) -> Tensor:
        """The effects of a factor, (groups, q_f, m), of columns u, (D, m)."""
        return u[span.latent].reshape(span.groups, -1, u.shape[1])

    def entries(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ over groups of left·rightᵀ at the free entries of Λ, (m, entries), of (D, m) each."""
        q, m = self.layout.random, left.shape[1]
        found = left.new_zeros(m, q, q)
        for s in self.spans:
            a, b = self.blocks(s, left), self.blocks(s, right)
            found[:, s.effects, s.effects] = torch.einsum("gam,gbm->mab", a, b)
        row, column = self.layout.entries
        return found[:, row, column]

    def slopes(self, theta: Tensor, eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The values log p(y_i | η_i), their slopes r and curvatures W in η, (n, m) each."""
        return self.family.slopes(eta, self.y, self.trials, self.layout.log_dispersion(theta))

    def density(self, theta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(y, u), (m,), and its gradient in u, (D, m), of columns u."""
        value, slope, _ = self.slopes(theta, self.base(theta) + self.spread(theta, u))
        constant = 0.5 * self.dimension * _LOG_2PI
        gradient = self.scaled(theta, self.gathered(slope), transposed=True) - u
        return value.sum(0) - 0.5 * u.square().sum(0) - constant, gradient

    def scores(self, theta: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """∇_θ log p(y, u), (m, θ), and the gradient in u, (D, m), of columns u.

        With r the slopes in η: ∇_β = Xᵀr, ∇_Λ = Σ_g (Zᵀr)_g u_gᵀ, of which the free entries, and
        the slopes in log φ are summed.
        """
        eta = self.base(theta) + self.spread(theta, u)
        _, slope, _ = self.slopes(theta, eta)
        gathered = self.gathered(slope)
        found = [slope.T @ self.x, self.entries(gathered, u)]
        if self.layout.dispersion:
            found.append(self.dispersion_slope(theta, eta).sum(0)[:, None])
        return torch.cat(found, 1), self.scaled(theta, gathered, transposed=True) - u

    def dispersion_slope(self, theta: Tensor, eta: Tensor) -> Tensor:
        """∂ log p(y_i | η_i)/∂ log φ, (n, m)."""
        dispersion = self.layout.log_dispersion(theta)
        return self.family.dispersion_slope(eta, self.y, self.trials, dispersion)


def _sparse(where: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix; values of equal places add up."""
    made = torch.sparse_coo_tensor(where, values.reshape(-1), shape, check_invariants=True)
    return made.coalesce()
