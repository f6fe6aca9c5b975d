"""The Metropolis-adjusted Langevin algorithm, with U = −log π.

    Y = X − h ∇U(X) + √(2h) Z,  Z ~ N(0, I);
    accepted with probability  1 ∧ π(Y) q(Y,X) / (π(X) q(X,Y)),
    log q(x,y) = −‖y − x + h ∇U(x)‖² / (4h) + const.

The paper's last sentence on MALA leaves out the proposal ratio q(Y,X)/q(X,Y); without it the
kernel does not leave π invariant (erratum 3 in docs/errata.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from mlmcgrad.kernels.acceptance import HALF, judged
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
            0.57 is about right in high dimension; `adapt` finds the step size for it.
        compile: make blocks of steps by `torch.compile`, see `MetropolisKernel`.

    Reference:
        Roberts and Tweedie (1996), "Exponential convergence of Langevin distributions and their
        discrete approximations".
    """

    def at(self, x: Tensor, context: Context) -> State:
        """State at x; one evaluation of the density and its gradient."""
        value, gradient = value_and_gradient(self.log_density, x, context)
        return State(x, judged(value), gradient)

    @property
    def deviation(self) -> float | Tensor:
        """√(2h)."""
        return (2.0 * self.step_size) ** 0.5

    def proposal(self, state: State, jump: Tensor) -> Tensor:
        """The point x + h ∇ log π(x) + √(2h) z."""
        return _plus(state.x + jump, self.step_size, state.gradient)

    def log_ratio(self, state: State, proposed: State, jump: Tensor) -> Tensor:
        """Log of π(y) q(y,x) / (π(x) q(x,y)).

        In log q(y,x) − log q(x,y) x and y cancel: with D = ∇ log π(x) + ∇ log π(y) it is
        −½ Σ D (√(2h) Z + ½ h D).
        """
        before, after = state.gradient, proposed.gradient
        if before.dtype in HALF:
            before, after, jump = before.float(), after.float(), jump.float()
        slopes = before + after
        total = _dot(slopes, _plus(jump, 0.5 * self.step_size, slopes))
        return torch.sub(proposed.log_density - state.log_density, total, alpha=0.5)


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
