"""Curvatures of the log-likelihood: the observed information, and a matrix for steps.

In the coordinates of `moving.py`, L_θ(x) = log p_θ(y, u_θ(x)) + log det C_θ is the log density of
x up to log p_θ(y), and Louis' identity is

    I = −E[∇²L | y] − Var[∇L | y].

In the usual coordinates both terms are large and nearly cancel in a direction that the random
effects explain well; in these, where the posterior is normal, ∇L does not depend on x and I is
exact. ∇L and ∇²L are central differences at the same states. At x = 0 alone L is Laplace's
approximation of the log-likelihood up to a constant, and −∇²L its information.

The complete-data information J = E[−∇²_θ log p_θ(y, u)] is what I would be if u were observed.
Since η_i is linear in β and Λ, with slopes x̃_i = (x_i, z_{ia} u_{ib}), J = E[X̃ᵀWX̃], W the
curvature of log p in η, which is ≥ 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mlmcgrad.mixed.joint import Joint
from mlmcgrad.mixed.laplace import laplace, newton

_STEP = 2e-3
_LEAST = 0.05  # of the complete-data information in a direction: a step is at most 20 times EM's
_PART = 2**21


def information(joint: Joint, theta: Tensor, mode: Tensor, x: Tensor, c: Tensor) -> Tensor:
    """The observed information, (θ, θ), symmetric.

    Args:
        joint: the density.
        theta: θ.
        mode: at θ, (D,).
        x: whitened states, (m, D).
        c: their coefficients, (m,), which sum to 1.
    """

    def density(at: Tensor) -> Tensor:
        """L, (m,)."""
        moved = laplace(joint, at, mode)
        parts = x.split(max(1, _PART // len(joint.x)))
        values = torch.cat([joint.density(at, moved.at(part))[0] for part in parts])
        return values + moved.log_volume

    slope, curvature = _differences(density, theta, c)
    centred = slope - c @ slope
    return -curvature - (c[:, None] * centred).T @ centred


def laplace_information(joint: Joint, theta: Tensor, mode: Tensor) -> Tensor:
    """The information of Laplace's approximation, (θ, θ), symmetric; without randomness."""

    def density(at: Tensor) -> Tensor:
        _, lower, value = newton(joint, at, mode)
        return (value - lower.diagonal().log().sum())[None]

    return -_differences(density, theta, torch.ones(1, dtype=theta.dtype))[1]


def _differences(
    function: Callable[[Tensor], Tensor], theta: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Slopes of each component, (m, θ), and the mean of the second derivatives, (θ, θ)."""
    size = len(theta)
    steps = torch.diag(_STEP * theta.abs().clamp(min=1.0))
    middle = c @ function(theta)
    above, below = ([function(theta + sign * h) for h in steps] for sign in (1.0, -1.0))
    slope = torch.stack([a - b for a, b in zip(above, below, strict=True)], 1)
    both = torch.stack([c @ (a + b) for a, b in zip(above, below, strict=True)])
    second = torch.diag(both - 2.0 * middle)
    for i in range(size):
        for j in range(i):
            together = steps[i] + steps[j]
            mixed = c @ (function(theta + together) + function(theta - together))
            second[i, j] = second[j, i] = 0.5 * (mixed - both[i] - both[j]) + middle
    h = steps.diagonal()
    return slope / (2.0 * h), second / (h[:, None] * h)


def complete_information(joint: Joint, theta: Tensor, u: Tensor) -> Tensor:
    """The complete-data information at states u, (D, m), of equal weight; positive semidefinite."""
    row, column = joint.layout.entries
    size, linear = len(theta), joint.layout.fixed + len(row)
    total = theta.new_zeros(size, size)
    eta = joint.base(theta) + joint.spread(theta, u)
    curvature = joint.slopes(theta, eta)[2]
    for state, weight in zip(u.T, curvature.T, strict=True):
        columns = torch.cat([joint.x, joint.z[:, row] * state[joint.place[:, column]]], 1)
        total[:linear, :linear] += columns.T @ (weight[:, None] * columns)
    if joint.layout.dispersion:
        step = torch.zeros_like(theta)
        step[-1] = _STEP
        above, below = (
            joint.dispersion_slope(at, eta).sum() for at in (theta + step, theta - step)
        )
        total[-1, -1] = ((above - below) / (2.0 * _STEP)).abs()
    return total / u.shape[1]


def positive(information: Tensor, complete: Tensor) -> Tensor:
    """A positive definite matrix for steps: I with absolute eigenvalues, relative to J.

    Far from the maximum I may be indefinite, and Newton's method would go to a saddle. With J = LLᵀ
    and L^{-1} I L^{-ᵀ} = Σ λ_k q_k q_kᵀ it is L (Σ |λ_k| q_k q_kᵀ) Lᵀ, |λ| kept between a twentieth
    and 1: a step goes uphill, in each direction at least as far as EM's and at most 20 times.
    """
    eye = torch.eye(len(complete), dtype=complete.dtype)
    lower = torch.linalg.cholesky(complete + 1e-8 * complete.diagonal().mean() * eye)
    left = torch.linalg.solve_triangular(lower, information, upper=False)
    relative = torch.linalg.solve_triangular(lower, left.T, upper=False)
    value, vector = torch.linalg.eigh(0.5 * (relative + relative.T))
    scaled = lower @ vector
    return (scaled * value.abs().clamp(_LEAST, 1.0)) @ scaled.T
