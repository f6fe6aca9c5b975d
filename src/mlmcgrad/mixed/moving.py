"""Scores with little noise: states that move with θ, as Laplace's approximation does.

Fisher's identity says that the score is the posterior mean of S(u) = ∇_θ log p_θ(y, u). Its
variance is all the information that is lost because u is not observed. In the coordinates x, with
u_θ(x) = mode_θ + C_θ x, the same identity is for each parameter k

    ∂_k log p_θ(y) = E[ R_k | y ],      R_k = d/dθ_k { log p_θ(y, u_θ(x)) + log det C_θ }
                   = S_k(u) + ∇_u log p_θ(y, u)ᵀ (a_k + B_k x) + tr(C^{-1} B_k),

a_k = ∂_k mode and B_k = ∂_k C. Where the posterior is normal, x is N(0, I) at every θ, and R is the
score itself, whatever x is; otherwise R varies as much as the posterior differs from Laplace's
approximation. All but S_k has the mean 0 for any a_k and B_k (Stein's identity), so differences
instead of derivatives, or those of a θ nearby, make no bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.mixed.joint import Joint
from mlmcgrad.mixed.laplace import Laplace, laplace

_STEP = 1e-4
# Numbers (states × rows or random effects) in memory at once.
_PART = 2**21


@dataclass(frozen=True)
class Motion:
    """How Laplace's approximation moves with θ."""

    theta: Tensor  # where
    shift: Tensor  # a, (θ, D)
    stretch: Tensor  # B, (θ, D, D), upper triangular

    @staticmethod
    def at(joint: Joint, theta: Tensor, mode: Tensor) -> Motion:
        """By central differences; the mode is the one at θ."""
        shifts, stretches = [], []
        for i in range(len(theta)):
            step = torch.zeros_like(theta)
            step[i] = _STEP * max(1.0, abs(float(theta[i])))
            above, below = (laplace(joint, at, mode) for at in (theta + step, theta - step))
            shifts.append((above.mode - below.mode) / (2.0 * step[i]))
            stretches.append((above.root - below.root) / (2.0 * step[i]))
        return Motion(theta, torch.stack(shifts), torch.stack(stretches))


def moving_scores(
    joint: Joint, theta: Tensor, approximation: Laplace, motion: Motion, x: Tensor
) -> Tensor:
    """R at whitened states.

    Args:
        joint: the density.
        theta: θ.
        approximation: Laplace's at θ, in whose coordinates the states are.
        motion: at θ or nearby.
        x: states, (m, D).

    Returns:
        (m, θ); the mean under the posterior is the score.
    """
    trace = (motion.stretch.diagonal(dim1=1, dim2=2) / approximation.root.diagonal()).sum(1)
    found = []
    for part in x.split(max(1, _PART // max(len(joint.x), joint.dimension))):
        complete, gradient = joint.scores(theta, approximation.at(part))
        moved = motion.shift @ gradient  # (θ, m)
        for k, stretch in enumerate(motion.stretch):
            moved[k] += (gradient * (stretch @ part.T)).sum(0)
        found.append(complete + moved.T + trace)
    return torch.cat(found)
