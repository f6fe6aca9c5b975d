"""Runs the chains of a step-based kernel side by side and streams out their signed measure.

Chains are sorted by length, so the ones still running are always the first `active` rows: when
some end, the others are a slice, and no work is done for a finished chain. Steps are made in
blocks; noise is drawn for a block at a time, and the trajectory of a block becomes a measure
before the next one starts, so memory does not depend on the length of the chains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar, final

import torch
from torch import Tensor

from mlmcgrad.measure import Measure, merge, merge_runs
from mlmcgrad.types import Context, Outcome, Plan, Start, take

Emit: TypeAlias = Callable[[Measure], None]
S = TypeVar("S", bound="tuple[Tensor, ...]")

# Numbers in the trajectory of one block, and its steps: enough to make the cost per block
# vanish, small enough to stay in the cache. A constant, because the noise depends on it.
_BLOCK_NUMBERS = 2**16
_BLOCK_STEPS = 256


class StepKernel(ABC, Generic[S]):
    """A kernel that moves all chains one step at a time; `run` then comes for free.

    A state is a NamedTuple of tensors with the chains in front, its first field is the position x;
    the others are what the next step needs and must not be computed again.
    """

    @abstractmethod
    def start(self, x: Tensor, context: Context) -> tuple[S, int]:
        """State at x, and the density evaluations it took for each chain."""

    @abstractmethod
    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Any:
        """Randomness for a block of steps: an object that `[i]` gives the noise of step i of."""

    @abstractmethod
    def advance(self, state: S, noise: Any, context: Context) -> tuple[S, Tensor, Tensor | None]:
        """Next state; which chains moved, (chains,) bool; which proposals were valid, or None."""

    @property
    @abstractmethod
    def evaluations_per_step(self) -> int:
        """Density evaluations that one step of one chain takes."""

    @final
    def run(
        self, x0: Start, context: Context, plan: Plan, generator: torch.Generator, emit: Emit
    ) -> Outcome:
        """Simulate the planned chains from x0 and emit their signed measure."""
        return run_steps(self, x0, context, plan, generator, emit)


def run_steps(
    kernel: StepKernel[S],
    x0: Start,
    context: Context,
    plan: Plan,
    generator: torch.Generator,
    emit: Emit,
) -> Outcome:
    """Run every chain for its planned length, handing over the measure piece by piece."""
    if not isinstance(x0, Tensor):
        given = "None" if x0 is None else type(x0).__name__
        raise ValueError(
            f"x0={given}: {type(kernel).__name__} needs a state for every chain to start from; "
            "only ISIR can draw its own or take a FirstBlock"
        )
    plan = plan.to(x0.device)
    lengths = plan.lengths
    order = lengths.argsort(descending=True, stable=True)
    plan, context = plan.select(order), take(context, order)
    last = torch.empty_like(x0)
    state, at_start = kernel.start(x0.detach()[order], context)
    carried = torch.zeros(len(order), dtype=torch.float64, device=x0.device)
    step, accepted, invalid = 0, 0, 0

    for active, end in _segments(plan.lengths):
        state, carried = type(state)(*(s[:active] for s in state)), carried[:active]
        context, order = take(context, slice(active)), order[:active]
        plan = plan.select(slice(active))
        while step < end:
            steps = min(end - step, _block_steps(state[0]))
            noise = kernel.noise(steps, state[0], generator)
            path = state[0].new_empty((steps + 1, *state[0].shape))
            moved = torch.empty((steps, active), dtype=torch.bool, device=path.device)
            valid = torch.ones_like(moved)
            path[0] = state[0]
            for i in range(steps):
                state, moved[i], ok = kernel.advance(state, noise[i], context)
                path[i + 1] = state[0]
                if ok is not None:
                    valid[i] = ok
            weights = plan.weights(step + 1, step + steps)
            measure, carried = merge_runs(path, moved, weights, carried, order)
            # Discrete states come back again and again: one point each is enough.
            emit(measure if path.is_floating_point() else merge(measure))
            accepted += int(moved.sum())
            invalid += int((~valid).sum())
            step += steps
        ended = plan.lengths == end
        last[order[ended]] = state[0][ended]
        keep = ended & (carried != 0.0)
        emit(Measure(state[0][keep], order[keep], carried[keep]))

    transitions = int(lengths.sum())
    evaluations = at_start * len(lengths) + kernel.evaluations_per_step * transitions
    return Outcome(last, evaluations, accepted, invalid)


def _segments(lengths: Tensor) -> Iterator[tuple[int, int]]:
    """(chains still running, step until which they all run), for lengths in descending order."""
    for end in lengths.unique().tolist():
        yield int((lengths >= end).sum()), int(end)


def _block_steps(x: Tensor) -> int:
    return max(1, min(_BLOCK_STEPS, _BLOCK_NUMBERS // max(1, x.numel())))


__all__ = ["Emit", "StepKernel", "run_steps"]
