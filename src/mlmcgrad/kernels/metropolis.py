"""What kernels that propose and accept have in common: plain or compiled blocks of steps."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TypeVar

from torch import Tensor

from mlmcgrad.kernels._compiled import Compiled
from mlmcgrad.kernels.acceptance import Noise, usable
from mlmcgrad.kernels.base import Context
from mlmcgrad.kernels.steps import StepKernel, Walk, steps

S = TypeVar("S", bound="tuple[Tensor, ...]")


class MetropolisKernel(StepKernel[S]):
    """A kernel that is `advance`, with the option to compile it."""

    compile: bool

    @abstractmethod
    def advance(
        self, state: S, noise: Noise, context: Context
    ) -> tuple[S, Tensor, tuple[Tensor, Tensor]]:
        """One transition of every chain: next state, who moved, and log ratio and log π(y)."""

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


__all__ = ["MetropolisKernel"]
