"""Random-walk Metropolis–Hastings.

Y = X + h Z,  Z ~ N(0, I);     accepted with probability 1 ∧ π(Y)/π(X).
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
from mlmcgrad.kernels.base import Context
from mlmcgrad.kernels.metropolis import MetropolisKernel


class State(NamedTuple):
    """Position and its log density."""

    x: Tensor  # (chains, *shape)
    log_density: Tensor  # (chains,)


@final
@dataclass(frozen=True)
class RWMH(MetropolisKernel[State]):
    """Random-walk Metropolis–Hastings with Gaussian proposals.

    Args:
        log_density: log π up to a constant, `log_density(x, *context) -> (chains,)`. It is
            evaluated once per step and never differentiated.
        step_size: h, standard deviation of the proposal, a number or a tensor that broadcasts
            against one state. In d dimensions about 2.4/√d standard deviations of π is a good
            start.
        compile: make blocks of steps by `torch.compile`, see docs/compile.md: several times
            faster for small models, after some seconds of compilation. It needs a C++ compiler;
            without one, or if `log_density` cannot be compiled, it warns and goes on without.

    Reference:
        Metropolis et al. (1953); Mengersen and Tweedie (1996) for its geometric ergodicity.
    """

    log_density: Callable[..., Tensor]
    step_size: float | Tensor
    compile: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_step_size("step_size", self.step_size)

    def start(self, x: Tensor, context: Context) -> tuple[State, int]:
        """State at x; one density evaluation."""
        check_floating(x, "RWMH")
        with torch.no_grad():
            value = self.log_density(x, *context)
        check_start("log_density", value, x)
        return State(x, value), 1

    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Noise:
        """Jumps h Z and log uniforms for a block of steps."""
        return proposal_noise(steps, x, self.step_size, generator)

    def advance(
        self, state: State, noise: Noise, context: Context
    ) -> tuple[State, Tensor, tuple[Tensor, Tensor]]:
        """One transition of every chain, and what says whether the proposal was usable."""
        y = state.x + noise.jump
        value = self.log_density(y, *context)
        log_ratio = value - state.log_density
        accepted = decide(log_ratio, noise.log_uniform)
        return choose(accepted, State(y, value), state), accepted, (log_ratio, value)


__all__ = ["RWMH"]
