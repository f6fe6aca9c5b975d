"""Derivatives of the log-likelihood in coordinates that move with θ: scores and information.

By Fisher's identity the score is the posterior mean of S(u) = ∇_θ log p_θ(y, u). The variance of S
is all the information that is lost because u is not observed. In the coordinates x of Laplace's
approximation, u_θ(x) = mode_θ + C_θ x, the same identity is for each parameter k

    ∂_k log p_θ(y) = E[ R_k | y ],      R_k = d/dθ_k { log p_θ(y, u_θ(x)) + log det C_θ }
                   = S_k(u) + ∇_u log p_θ(y, u)ᵀ (a_k + B_k x) + tr(C^{-1} B_k),

with a_k = ∂_k mode and B_k = ∂_k C. Where the posterior is normal, x is N(0, I) at every θ and R is
the score itself, whatever x is; otherwise R varies as much as the posterior differs from Laplace's
approximation. All terms but S_k have mean 0 for any a_k and B_k (Stein's identity), so finite
differences, or the derivatives at a θ nearby, cause no bias.

In the same coordinates L_θ(x) = log p_θ(y, u_θ(x)) + log det C_θ is the log density of x up to
log p_θ(y), and Louis' identity is

    I = −E[∇²L | y] − Var[∇L | y].

In the usual coordinates both terms are large and nearly cancel in a direction that the random
effects explain well. In these, where the posterior is normal, ∇L does not depend on x and I is
exact. ∇L and ∇²L are central differences at the same states. At x = 0 alone L is Laplace's
approximation of the log-likelihood up to a constant, and −∇²L its information.

The complete-data information J = E[−∇²_θ log p_θ(y, u)] is what I would be if u were observed.
Since η_i is linear in β and Λ, with slopes x̃_i = (x_i, z_{ia} u_{ib}), J = E[X̃ᵀWX̃], where W is the
curvature of log p in η, which is ≥ 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.mixed.crossed.joint import Joint, Laplace, laplace, newton

_SCORE_STEP, _STEP = 1e-4, 2e-3  # of differences in θ, for scores and for the information
_LEAST = 0.05  # of the complete-data information in a direction: a step is at most 20 times EM's
_PART = 2**21  # numbers (states × rows or random effects) in memory at once


@dataclass(frozen=True)
class Motion:
    """The derivatives of Laplace's approximation in θ."""

    theta: Tensor
    shift: Tensor  # a, (θ, D)
    stretch: Tensor  # B, (θ, D, D), upper triangular

    @staticmethod
    def at(here: Laplace) -> Motion:
        """Compute them by central differences."""
        theta, shifts, stretches = here.theta, [], []
        for step in torch.diag(_SCORE_STEP * theta.abs().clamp(min=1.0)):
            above, below = (laplace(here.joint, theta + h, here.mode) for h in (step, -step))
            shifts.append((above.mode - below.mode) / (2.0 * step.sum()))
            stretches.append((above.root - below.root) / (2.0 * step.sum()))
        return Motion(theta, torch.stack(shifts), torch.stack(stretches))


def moving_scores(here: Laplace, motion: Motion, x: Tensor) -> Tensor:
    """Return R, (m, θ), whose posterior mean is the score.

    Args:
        here: Laplace's approximation at θ, which defines the coordinates.
        motion: its derivatives, at θ or nearby.
        x: whitened states, (m, D).
    """
    trace = (motion.stretch.diagonal(dim1=1, dim2=2) / here.root.diagonal()).sum(1)
    found, size = [], max(len(here.joint.x), here.joint.dimension)
    for part in x.split(max(1, _PART // size)):
        complete, gradient = here.joint.scores(here.theta, here.at(part))
        moved = motion.shift @ gradient  # (θ, m)
        for k, stretch in enumerate(motion.stretch):
            moved[k] += (gradient * (stretch @ part.T)).sum(0)
        found.append(complete + moved.T + trace)
    return torch.cat(found)


def information(here: Laplace, x: Tensor, c: Tensor) -> Tensor:
    """Return terms whose mean with the coefficients c is the observed information, (m, θ, θ).

    Args:
        here: Laplace's approximation at θ.
        x: whitened states, (m, D).
        c: their coefficients, (m,), which sum to 1.
    """

    def density(at: Tensor) -> Tensor:
        """Return L, (m,)."""
        moved = laplace(here.joint, at, here.mode)
        parts = x.split(max(1, _PART // len(here.joint.x)))
        return torch.cat([moved.density(part)[0] for part in parts]) + moved.log_volume

    slope, curvature = _differences(density, here.theta)
    centred = slope - c @ slope
    return -curvature - centred[:, :, None] * centred[:, None, :]


def laplace_information(here: Laplace) -> Tensor:
    """Return the information of Laplace's approximation, (θ, θ), symmetric; it is not random."""

    def density(at: Tensor) -> Tensor:
        _, lower, value = newton(here.joint, at, here.mode)
        return (value - lower.diagonal().log().sum())[None]

    return -_differences(density, here.theta)[1][0]


def _differences(function: Callable[[Tensor], Tensor], theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slopes of each component, (m, θ), and its second derivatives, (m, θ, θ)."""
    steps = torch.diag(_STEP * theta.abs().clamp(min=1.0))
    middle = function(theta)
    above, below = (torch.stack([function(theta + h) for h in hs], 1) for hs in (steps, -steps))
    both = above + below
    second = torch.diag_embed(both - 2.0 * middle[:, None])
    for i in range(len(theta)):
        for j in range(i):
            together = steps[i] + steps[j]
            mixed = function(theta + together) + function(theta - together)
            entry = 0.5 * (mixed - both[:, i] - both[:, j]) + middle
            second[:, i, j] = second[:, j, i] = entry
    h = steps.diagonal()
    return (above - below) / (2.0 * h), second / (h[:, None] * h)


def complete_information(joint: Joint, theta: Tensor, u: Tensor) -> Tensor:
    """Return the complete-data information at equally weighted states u, (D, m)."""
    row, column = joint.layout.entries
    size, linear = len(theta), joint.layout.fixed + len(row)
    total = theta.new_zeros(size, size)
    eta = joint.predictor(theta, u)
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
    """Return a positive definite matrix for steps: I with absolute eigenvalues, relative to J.

    Far from the maximum I may be indefinite, and Newton's method would go to a saddle. With J = LLᵀ
    and L^{-1} I L^{-ᵀ} = Σ λ_k q_k q_kᵀ, the matrix is L (Σ |λ_k| q_k q_kᵀ) Lᵀ with |λ| clamped to
    [0.05, 1]: a step goes uphill, in each direction between 1 and 20 times as far as EM's.
    """
    eye = torch.eye(len(complete), dtype=complete.dtype)
    lower = torch.linalg.cholesky(complete + 1e-8 * complete.diagonal().mean() * eye)
    left = torch.linalg.solve_triangular(lower, information, upper=False)
    relative = torch.linalg.solve_triangular(lower, left.T, upper=False)
    value, vector = torch.linalg.eigh(0.5 * (relative + relative.T))
    scaled = lower @ vector
    return (scaled * value.abs().clamp(_LEAST, 1.0)) @ scaled.T
