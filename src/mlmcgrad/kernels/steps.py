"""Kernels that move all chains one step at a time, and the loop that runs them.

Chains are sorted by length, so the ones still running are always the first `active` rows: when
some end, the others are a slice, and no work is done for a finished chain. Steps are made in
blocks; noise is drawn for a block at a time, and the trajectory of a block becomes a measure
before the next one starts, so memory does not depend on the length of the chains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context, Outcome, Pieces, Simulation, Start, count_states, take
from mlmcgrad.measure import Measure, merge, merge_runs
from mlmcgrad.plan import Plan

S = TypeVar("S", bound="tuple[Tensor, ...]")

# Numbers in the trajectory of one block, and its steps: enough to make the cost per block
# vanish, small enough to stay in the cache. A constant, because the noise depends on it.
_BLOCK_NUMBERS = 2**18
_BLOCK_STEPS = 1024
# Long blocks are a multiple of this, so that compiled kernels can take as many steps at a time.
STRIDE = 8


class Walk(NamedTuple, Generic[S]):
    """Some steps of all chains."""

    state: S  # after the last step
    path: Tensor  # (steps + 1, chains, *shape): the position before them, and after each step
    moved: Tensor  # (steps, chains) bool: whether a step changed the position
    valid: Tensor | None  # (steps, chains) bool: false for a proposal that could not be used


class Block(NamedTuple):
    """Some steps of the chains that still run."""

    chains: Tensor  # (active,): which ones, the longest first
    step: int  # how many steps they had made before
    path: Tensor  # (steps + 1, active, *shape): where they were, and after each step
    moved: Tensor  # (steps, active) bool


class StepKernel(ABC, Generic[S]):
    """A kernel that moves all chains one step at a time; `run` comes for free.

    A state is a NamedTuple of tensors with the chains in front, its first field is the position x;
    the others are what the next step needs and must not be computed again.
    """

    @abstractmethod
    def start(self, x: Tensor, context: Context) -> tuple[S, int]:
        """State at x, and the density evaluations it took for each chain."""

    @abstractmethod
    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Any:
        """Randomness for a block of steps, in the form that `walk` takes it."""

    @abstractmethod
    def walk(self, state: S, noise: Any, context: Context) -> list[Walk[S]]:
        """Make a block of steps, in one or several pieces; `steps` makes them one by one."""

    @property
    @abstractmethod
    def evaluations_per_step(self) -> int:
        """Density evaluations that one step of one chain takes."""

    @final
    def chains(self, x0: Start, context: Context) -> int:
        """One for each row of x0."""
        return count_states(x0, type(self).__name__)

    @final
    def run(self, x0: Start, context: Context, plan: Plan, generator: torch.Generator) -> Pieces:
        """Run every chain for its planned length; its measure comes block by block."""
        plan = plan.to(x0.device)
        carried = torch.zeros(len(plan.levels), dtype=torch.float64, device=x0.device)
        part: Plan | None = None  # of the chains that still run, in their order
        simulation = Simulation(self.blocks(x0, context, plan.longest, generator))
        for owner, step, path, moved in simulation:
            if part is None or len(part.levels) != len(owner):
                part, carried = plan.select(owner), carried[: len(owner)]
            end = step + len(moved)
            weights = part.step_weights(step + 1, end)
            measure, carried = merge_runs(path, moved, weights, carried, owner)
            # Discrete states come back again and again: one point each is enough.
            yield measure if path.is_floating_point() else merge(measure)
            if end == int(part.longest[-1]):
                keep = (part.longest == end) & (carried != 0.0)
                yield Measure(path[-1][keep], owner[keep], carried[keep])
        return simulation.outcome

    @final
    def blocks(
        self, x0: Tensor, context: Context, lengths: Tensor, generator: torch.Generator
    ) -> Generator[Block, None, Outcome]:
        """Run every chain for its length: what they did comes block by block.

        `run` makes a measure of it; whoever wants the trajectories themselves takes them here,
        and gets those of `run` for the same state of the generator.

        Args:
            x0: where the chains start, (chains, *shape).
            context: as for `run`.
            lengths: transitions of each chain, (chains,).
            generator: source of all randomness.
        """
        lengths = lengths.to(x0.device)
        order = lengths.argsort(descending=True, stable=True)
        longest, context = lengths[order], take(context, order)
        last = torch.empty_like(x0)
        state, at_start = self.start(x0.detach()[order], context)
        step, accepted, invalid = 0, 0, 0

        for active, end in _segments(longest):
            state = type(state)(*(s[:active] for s in state))
            context, order = take(context, slice(active)), order[:active]
            while step < end:
                count = min(end - step, _block_steps(state[0]))
                with torch.no_grad():
                    noise = self.noise(count, state[0], generator)
                    walks = self.walk(state, noise, context)
                path = _joined([walk.path for walk in walks])
                moved = torch.cat([walk.moved for walk in walks])
                yield Block(order, step, path, moved)
                accepted += int(moved.sum())
                invalid += sum(int((~walk.valid).sum()) for walk in walks if walk.valid is not None)
                state, step = walks[-1].state, step + count
            ended = longest[:active] == end
            last[order[ended]] = state[0][ended]

        transitions = int(lengths.sum())
        evaluations = at_start * len(lengths) + self.evaluations_per_step * transitions
        return Outcome(last, evaluations, accepted, invalid)


def steps(
    advance: Callable[[S, Any, Context], tuple[S, Tensor, tuple[Tensor, ...]]],
    state: S,
    noise: Iterable[Any],
    context: Context,
    valid: Callable[..., Tensor] = lambda valid: valid,
) -> Walk[S]:
    """Make steps one by one.

    Args:
        advance: one step of all chains from a state with the noise of the step: the next state;
            which chains moved, (chains,) bool; tensors that say which proposals were valid, if
            any can be invalid.
        state: where the chains are.
        noise: that of each step.
        context: what the user's functions take after x.
        valid: makes of these tensors, with the steps in front, (steps, chains) bool.
    """
    path, moves, signs = [state[0]], [], []
    for one in noise:
        state, moved, sign = advance(state, one, context)
        path.append(state[0])
        moves.append(moved)
        signs.append(sign)
    seen = [torch.stack(field) for field in zip(*signs, strict=True)]
    return Walk(state, torch.stack(path), torch.stack(moves), valid(*seen) if seen else None)


def _joined(paths: list[Tensor]) -> Tensor:
    """Paths of which each begins where the one before ended; not copied if there is one."""
    return paths[0] if len(paths) == 1 else torch.cat([paths[0], *(path[1:] for path in paths[1:])])


def _segments(lengths: Tensor) -> Iterator[tuple[int, int]]:
    """(chains still running, step until which they all run), for lengths in descending order."""
    for end in lengths.unique().tolist():
        yield int((lengths >= end).sum()), int(end)


def _block_steps(x: Tensor) -> int:
    steps = max(1, min(_BLOCK_STEPS, _BLOCK_NUMBERS // max(1, x.numel())))
    return steps if steps < STRIDE else steps - steps % STRIDE
