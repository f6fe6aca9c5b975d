"""What kernels that propose and accept have in common: from x propose y, then keep one of them.

A kernel is `at` (what it knows of a position), `proposal` (where it would go) and `log_ratio` (how
that is judged); `acceptance.py` decides.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from mlmcgrad.kernels._compiled import Compiled
from mlmcgrad.kernels.acceptance import Noise, choose, decide, proposal_noise, usable
from mlmcgrad.kernels.base import Context, check_rows, check_unchanged
from mlmcgrad.kernels.steps import StepKernel, Walk, steps

S = TypeVar("S", bound="tuple[Tensor, ...]")


@dataclass(frozen=True)
class MetropolisKernel(StepKernel[S]):
    """A kernel with Gaussian jumps; its state begins with the position and its log density.

    Args:
        log_density: log π up to a constant, `log_density(x, *context) -> (chains,)`.
        step_size: size of a move, a number or a tensor that broadcasts against one state.
        compile: make blocks of steps by `torch.compile`: several times faster for small models,
            after some seconds of compilation. It needs a C++ compiler; without one, or if
            `log_density` cannot be compiled, the kernel warns and goes on without.
    """

    log_density: Callable[..., Tensor]
    step_size: float | Tensor
    compile: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        size = torch.as_tensor(self.step_size)
        if not bool(((size > 0.0) & size.isfinite()).all()):
            raise ValueError(f"step_size must be positive and finite, got {self.step_size!r}")

    @abstractmethod
    def at(self, x: Tensor, context: Context) -> S:
        """State at x: one evaluation of the density, with its gradient where that is used."""

    @property
    @abstractmethod
    def deviation(self) -> float | Tensor:
        """Standard deviation of a jump."""

    @abstractmethod
    def proposal(self, state: S, jump: Tensor) -> Tensor:
        """Where the chains would move, y."""

    @abstractmethod
    def log_ratio(self, state: S, proposed: S, jump: Tensor) -> Tensor:
        """Log of π(y) q(y,x) / (π(x) q(x,y)), (chains,)."""

    @final
    def start(self, x: Tensor, context: Context) -> tuple[S, int]:
        """State at x, which must have a density; one evaluation."""
        if not x.is_floating_point():
            name = type(self).__name__
            raise ValueError(f"x0 must have a floating-point dtype for {name}, got {x.dtype}")
        version = x._version
        with torch.no_grad():
            state = self.at(x, context)
        check_unchanged("log_density", x, version)
        _check_start(state)
        return state, 1

    @final
    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Noise:
        """Jumps and log uniforms for a block of steps."""
        return proposal_noise(steps, x, self.deviation, generator)

    @final
    def advance(
        self, state: S, noise: Noise, context: Context
    ) -> tuple[S, Tensor, tuple[Tensor, Tensor]]:
        """One transition of every chain: next state, who moved, and log ratio and log π(y)."""
        proposed = self.at(self.proposal(state, noise.jump), context)
        log_ratio = self.log_ratio(state, proposed, noise.jump)
        accepted = decide(log_ratio, noise.log_uniform)
        return choose(accepted, proposed, state), accepted, (log_ratio, proposed[1])

    @final
    def walk(self, state: S, noise: Noise, context: Context) -> list[Walk[S]]:
        """A block of transitions of every chain."""
        if self.compile:
            return self._compiled.walk(state, noise, context)
        return [steps(self.advance, state, noise.unbind(), context, usable)]

    @property
    def evaluations_per_step(self) -> int:
        """One evaluation of the density, with its gradient where that is used."""
        return 1

    @cached_property
    def _compiled(self) -> Compiled[S]:
        return Compiled(type(self).__name__, self.advance)


def _check_start(state: Any) -> None:
    """Refuse a log density of the wrong shape, or one that is not finite where chains start."""
    x, values, *gradient = state
    check_rows("log_density", values, x)
    bad = ~values.isfinite()
    for slope in gradient:
        bad |= ~slope.reshape(len(x), -1).isfinite().all(1)
    if bool(bad.any()):
        chain = int(bad.nonzero()[0, 0])
        shown = [f"{v:.4g}" for v in x[chain].flatten()[:4].tolist()]
        raise FloatingPointError(
            "log_density must be finite (with a finite gradient, where one is used) at x0, got "
            f"{values[chain].item()!r} for {int(bad.sum())} of {len(bad)} chains (the first of "
            f"these starts at [{', '.join(shown)}{', …' * (x[chain].numel() > 4)}]); start inside "
            "the support"
        )
