"""A user's own transition, for example block Gibbs: anything that maps states to next states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from mlmcgrad.kernels.acceptance import choose
from mlmcgrad.kernels.base import Context, check_unchanged
from mlmcgrad.kernels.steps import StepKernel, Walk, steps


class State(NamedTuple):
    """Position."""

    x: Tensor  # (chains, *shape)


@final
@dataclass(frozen=True)
class FromStep(StepKernel[State]):
    """A kernel from a function that makes one transition of all chains.

    Args:
        step: `step(x, *context, generator=generator) -> x`, of the same shape and dtype. It moves
            each row on its own and takes all randomness from the generator. It runs without
            gradients; it must not change x in place.

    Example:
        >>> def flip(x, generator):  # a fair coin each time
        ...     return torch.randint(0, 2, x.shape, generator=generator)
        >>> kernel = FromStep(flip)
    """

    step: Callable[..., Tensor]

    def start(self, x: Tensor, context: Context) -> tuple[State, int]:
        """State at x; nothing is evaluated."""
        return State(x), 0

    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> list[torch.Generator]:
        """The generator itself: how much noise a step takes is the user's business."""
        return [generator] * steps

    def walk(
        self, state: State, noise: list[torch.Generator], context: Context
    ) -> list[Walk[State]]:
        """A block of transitions of every chain."""
        return [steps(self.advance, state, noise, context)]

    def advance(
        self, state: State, noise: torch.Generator, context: Context
    ) -> tuple[State, Tensor, tuple[Tensor, ...]]:
        """One transition of every chain; a chain that would become NaN stays where it is."""
        version = state.x._version
        x = self.step(state.x, *context, generator=noise)
        check_unchanged("step", state.x, version)
        if not isinstance(x, Tensor) or x.shape != state.x.shape or x.dtype != state.x.dtype:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(type(x))
            raise ValueError(
                f"step must return states like those it is given, {state.x.dtype} of shape "
                f"{tuple(state.x.shape)}, got {got}"
            )
        moved = (x != state.x).reshape(len(x), -1).any(1)
        if not x.is_floating_point():
            return State(x), moved, ()
        valid = ~x.isnan().reshape(len(x), -1).any(1)
        return choose(valid, State(x), state), moved & valid, (valid,)

    @property
    def evaluations_per_step(self) -> int:
        """A transition counts as one evaluation of the model."""
        return 1
