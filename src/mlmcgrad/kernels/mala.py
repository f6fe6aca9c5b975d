"""The Metropolis-adjusted Langevin algorithm, with U = −log π.

    Y = X − h ∇U(X) + √(2h) Z,  Z ~ N(0, I);
    accepted with probability  1 ∧ π(Y) q(Y,X) / (π(X) q(X,Y)),
    log q(x,y) = −‖y − x + h ∇U(x)‖² / (4h) + const.

The paper's last sentence on MALA leaves out the proposal ratio q(Y,X)/q(X,Y); without it the
kernel does not leave π invariant (erratum 3 in docs/errata.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
from mlmcgrad.kernels.base import Context, check_rows
from mlmcgrad.kernels.metropolis import MetropolisKernel


class State(NamedTuple):
    """Position, its log density and the gradient of that."""

    x: Tensor  # (chains, *shape)
    log_density: Tensor  # (chains,)
    gradient: Tensor  # (chains, *shape): ∇ log π = −∇U


@final
@dataclass(frozen=True)
class MALA(MetropolisKernel[State]):
    """Langevin proposals, Metropolis–Hastings acceptance.

    Args:
        log_density: log π up to a constant, `log_density(x, *context) -> (chains,)`,
            differentiable in x. Evaluated and differentiated once per step.
        step_size: h, a number or a tensor that broadcasts against one state. An acceptance near
            0.57 is about right in high dimension.
        compile: make blocks of steps by `torch.compile`, see docs/compile.md: several times
            faster for small models, after some seconds of compilation. It needs a C++ compiler;
            without one, or if `log_density` cannot be compiled, it warns and goes on without.

    Reference:
        Roberts and Tweedie (1996), "Exponential convergence of Langevin distributions and their
        discrete approximations".
    """

    log_density: Callable[..., Tensor]
    step_size: float | Tensor
    compile: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_step_size("step_size", self.step_size)

    def start(self, x: Tensor, context: Context) -> tuple[State, int]:
        """State at x; one evaluation of the density and its gradient."""
        check_floating(x, "MALA")
        value, gradient = value_and_gradient(self.log_density, x, context)
        check_start("log_density", value, x, gradient)
        return State(x, value, gradient), 1

    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Noise:
        """Jumps √(2h) Z and log uniforms for a block of steps."""
        return proposal_noise(steps, x, (2.0 * self.step_size) ** 0.5, generator)

    def advance(
        self, state: State, noise: Noise, context: Context
    ) -> tuple[State, Tensor, tuple[Tensor, Tensor]]:
        """One transition of every chain, and what says whether the proposal was usable."""
        h = self.step_size
        y = _plus(state.x + noise.jump, h, state.gradient)
        value, gradient = value_and_gradient(self.log_density, y, context)
        # log q(y,x) − log q(x,y), where x and y cancel: with D = ∇ log π(x) + ∇ log π(y) it is
        # −½ Σ D (√(2h) Z + ½ h D).
        slopes = state.gradient + gradient
        total = _dot(slopes, _plus(noise.jump, 0.5 * h, slopes))
        log_ratio = torch.sub(value - state.log_density, total, alpha=0.5)
        accepted = decide(log_ratio, noise.log_uniform)
        return choose(accepted, State(y, value, gradient), state), accepted, (log_ratio, value)


def _plus(a: Tensor, h: float | Tensor, b: Tensor) -> Tensor:
    """A + h b in one pass over the numbers."""
    return torch.addcmul(a, b, h) if isinstance(h, Tensor) else torch.add(a, b, alpha=h)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Σ a b over each state, (chains,)."""
    if a.dim() != 2:
        a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    return torch.linalg.vecdot(a, b)


def value_and_gradient(
    log_density: Callable[..., Tensor], x: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    """Log π(x) for every chain and its gradient in x, detached."""
    if torch.compiler.is_dynamo_compiling():
        return _traced(log_density, x, context)
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        value = log_density(leaf, *context)
    check_rows("log_density", value, x)
    if not value.requires_grad:
        raise ValueError(
            "log_density must be differentiable in x for MALA, but its value does not depend "
            "on x through differentiable operations; RWMH needs no gradient"
        )
    (gradient,) = torch.autograd.grad((value,), (leaf,), (torch.ones_like(value),))
    return value.detach(), gradient


def _traced(
    log_density: Callable[..., Tensor], x: Tensor, context: Context
) -> tuple[Tensor, Tensor]:
    """The same in a form that can be part of a compiled graph."""

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        value = log_density(x, *context)
        return value.sum(), value

    gradient, value = torch.func.grad(total, has_aux=True)(x)
    return value.detach(), gradient


__all__ = ["MALA", "value_and_gradient"]
