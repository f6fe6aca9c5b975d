"""The Metropolis-adjusted Langevin algorithm (PAPER.md section 6), with U = −log π.

    Y = X − h ∇U(X) + √(2h) Z,  Z ~ N(0, I);
    accepted with probability  1 ∧ π(Y) q(Y,X) / (π(X) q(X,Y)),
    log q(x,y) = −‖y − x + h ∇U(x)‖² / (4h) + const.

The paper's last sentence on MALA leaves out the proposal ratio q(Y,X)/q(X,Y); without it the
kernel does not leave π invariant (erratum 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from mlmcgrad.kernels.acceptance import (
    Noise,
    check_floating,
    check_start,
    check_step_size,
    choose,
    decide,
    proposal_noise,
)
from mlmcgrad.kernels.driver import StepKernel
from mlmcgrad.types import Context, check_rows


class State(NamedTuple):
    """Position, its log density and the gradient of that."""

    x: Tensor  # (chains, *shape)
    log_density: Tensor  # (chains,)
    gradient: Tensor  # (chains, *shape): ∇ log π = −∇U


@final
@dataclass(frozen=True)
class MALA(StepKernel[State]):
    """Langevin proposals, Metropolis–Hastings acceptance.

    Args:
        log_density: log π up to a constant, `log_density(x, *context) -> (chains,)`,
            differentiable in x. Evaluated and differentiated once per step.
        step_size: h, a number or a tensor that broadcasts against one state. An acceptance near
            0.57 is about right in high dimension.

    Reference:
        Roberts and Tweedie (1996), "Exponential convergence of Langevin distributions and their
        discrete approximations".
    """

    log_density: Callable[..., Tensor]
    step_size: float | Tensor

    def __post_init__(self) -> None:
        check_step_size("step_size", self.step_size)

    def start(self, x: Tensor, context: Context) -> tuple[State, int]:
        """State at x; one evaluation of the density and its gradient."""
        check_floating(x, "MALA")
        value, gradient = value_and_gradient(self.log_density, x, context)
        check_start("log_density", value, x, gradient)
        return State(x, value, gradient), 1

    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> list[Noise]:
        """Proposal noise and log uniforms for a block of steps."""
        return proposal_noise(steps, x, generator)

    def advance(self, state: State, noise: Noise, context: Context) -> tuple[State, Tensor, Tensor]:
        """One transition of every chain."""
        h = self.step_size
        y = state.x + h * state.gradient + (2.0 * h) ** 0.5 * noise.normal
        value, gradient = value_and_gradient(self.log_density, y, context)
        back = (state.x - y - h * gradient).square() / (2.0 * h)  # twice −log q(y, x)
        log_q_ratio = 0.5 * (noise.normal.square() - back).reshape(len(y), -1).sum(1)
        log_ratio = value - state.log_density + log_q_ratio
        # A proposal outside the support is an ordinary rejection; anything else that leaves no
        # finite ratio (NaN, an infinite density or gradient) is refused and counted.
        valid = (value == -torch.inf) | ((log_ratio > -torch.inf) & (value < torch.inf))
        accepted = decide(log_ratio, noise.log_uniform) & valid
        return choose(accepted, State(y, value, gradient), state), accepted, valid

    @property
    def evaluations_per_step(self) -> int:
        """One evaluation of the density with its gradient."""
        return 1


def value_and_gradient(
    log_density: Callable[..., Tensor], x: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    """Log π(x) for every chain and its gradient in x, detached."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        value = log_density(leaf, *context)
        check_rows("log_density", value, x)
        if not value.requires_grad:
            raise ValueError(
                "log_density must be differentiable in x for MALA, but its value does not depend "
                "on x through differentiable operations; RWMH needs no gradient"
            )
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


__all__ = ["MALA", "value_and_gradient"]
