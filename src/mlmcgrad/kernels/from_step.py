"""A user's own transition, for example block Gibbs: anything that maps states to next states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import (
    Context,
    Position,
    StepKernel,
    Walk,
    check_unchanged,
    described,
    steps,
)
from mlmcgrad.kernels.metropolis import choose


@final
@dataclass(frozen=True)
class FromStep(StepKernel[Position]):
    """A kernel from a function that makes one transition of all chains.

    Args:
        step: `step(x, *context, generator=generator) -> x`, of the same shape and dtype. It moves
            rows independently, takes all randomness from the generator, and must not change x in
            place. It runs without gradients.

    Example:
        >>> def flip(x, generator):  # a fair coin each time
        ...     return torch.randint(0, 2, x.shape, generator=generator)
        >>> kernel = FromStep(flip)
    """

    step: Callable[..., Tensor]

    def start(self, x: Tensor, context: Context) -> tuple[Position, int]:
        """State at x; nothing is evaluated."""
        return Position(x), 0

    def fault(self, state: Position) -> None:
        """Nothing is known of the states that a step can start from."""

    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> list[torch.Generator]:
        """The generator itself: how much noise a step takes is the user's business."""
        return [generator] * steps

    def walk(
        self, state: Position, noise: list[torch.Generator], context: Context
    ) -> Walk[Position]:
        """Make a block of transitions of every chain."""
        return steps(self.advance, state, noise, context)

    def advance(
        self, state: Position, noise: torch.Generator, context: Context
    ) -> tuple[Position, Tensor, tuple[Tensor, ...]]:
        """One transition of every chain; a chain that would become NaN stays where it is."""
        version = state.x._version
        x = self.step(state.x, *context, generator=noise)
        check_unchanged("step", state.x, version)
        if not isinstance(x, Tensor) or x.shape != state.x.shape or x.dtype != state.x.dtype:
            raise ValueError(
                f"step must return states like those it is given, {described(state.x)}, got "
                f"{described(x)}"
            )
        moved = (x != state.x).reshape(len(x), -1).any(1)
        if not (x.is_floating_point() or x.is_complex()):
            return Position(x), moved, ()
        valid = ~x.isnan().reshape(len(x), -1).any(1)
        return choose(valid, Position(x), state), moved & valid, (valid,)
