"""Mode and curvature of the random effects of all groups together.

    f(u) = log p_θ(y, u),      ∇f = Λ̃ᵀZᵀr − u,      −∇²f ≈ H = I + Λ̃ᵀZᵀWZΛ̃,

r and W the slope and the (expected) curvature of log p in η. Newton's method with a dense Cholesky
factor, halving a step that leads downhill. N(mode, H^{-1}) is Laplace's approximation of
p_θ(u | y).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.mixed.joint import Joint

_STEPS, _HALVINGS = 60, 30
_ENOUGH = 1e-20  # Newton's decrement at the mode: differences in θ are taken of it


@dataclass(frozen=True)
class Laplace:
    """Laplace's approximation."""

    mode: Tensor  # (D,)
    root: Tensor  # (D, D): C with CCᵀ = H^{-1}, upper triangular

    def at(self, x: Tensor) -> Tensor:
        """The columns u = mode + Cx, (D, m), of whitened rows x, (m, D)."""
        return self.mode[:, None] + self.root @ x.T

    @property
    def log_volume(self) -> Tensor:
        """Log det C."""
        return self.root.diagonal().log().sum()


def laplace(joint: Joint, theta: Tensor, start: Tensor | None = None) -> Laplace:
    """Find the mode and the curvature.

    Args:
        joint: the density.
        theta: θ.
        start: where Newton's method begins, (D,); 0 by default.
    """
    mode, lower, _ = newton(joint, theta, start)
    # H = RRᵀ: C = R^{-ᵀ}.
    eye = torch.eye(joint.dimension, dtype=theta.dtype)
    root = torch.linalg.solve_triangular(lower.mT, eye, upper=True)
    # Row by row, in which order its products with states are several times as fast.
    return Laplace(mode, root.contiguous())


def newton(
    joint: Joint, theta: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The mode, (D,); R, lower triangular, with RRᵀ = H; and log p(y, mode)."""
    u = theta.new_zeros(joint.dimension) if start is None else start
    columns = joint.z @ joint.layout.factor(theta)  # (n, q): those of ZΛ̃
    base = joint.base(theta)
    value, gradient = joint.density(theta, u[:, None])
    for _ in range(_STEPS):
        _, _, curvature = joint.slopes(theta, base + joint.spread(theta, u[:, None]))
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
    """H; the rows of a pair of groups add up at its place."""
    d = joint.dimension
    place = joint.place[:, :, None] * d + joint.place[:, None, :]
    products = columns[:, :, None] * (curvature * columns)[:, None, :]
    found = torch.bincount(place.reshape(-1), products.reshape(-1), d * d).reshape(d, d)
    found.diagonal().add_(1.0)
    return found
