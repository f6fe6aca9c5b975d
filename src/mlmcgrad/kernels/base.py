"""What a kernel is: it turns a plan of lengths into a signed measure on states.

A simulation is a generator: it yields the measure Σ_j c_j δ_{x_j} piece by piece, while chains are
still running, and returns its `Outcome`. Shapes: the chain dimension comes first everywhere,
x: (chains, *shape).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from mlmcgrad.measure import Measure, pick
from mlmcgrad.plan import Plan
from mlmcgrad.store import Remembered

Context: TypeAlias = tuple[Any, ...]
"""What `log_density`, `loss`, … take after x: tensors with one row a chain, alone or in tuples,
lists and dicts. Anything else is passed through unchanged."""

Start: TypeAlias = Any
"""Where chains start: states, (chains, *shape), or whatever else the kernel knows."""


@dataclass(frozen=True)
class Outcome:
    """What a kernel reports when its chains have ended; see `Estimate` for the meaning."""

    last: Tensor  # (chains, *shape)
    evaluations: int
    accepted: float
    invalid: int
    collapsed: int = 0  # chains in whose first step one candidate has nearly all the weight


Pieces: TypeAlias = Generator[Measure, None, Outcome]


class Kernel(Protocol):
    """What `MarkovGradient` needs of a kernel."""

    def chains(self, x0: Start, context: Context) -> int:
        """How many chains this start holds, or a ValueError that says what is wrong with it."""

    def run(self, x0: Start, context: Context, plan: Plan, generator: torch.Generator) -> Pieces:
        """Simulate the planned chains from x0: yield their measure, return the outcome."""


Piece = TypeVar("Piece")


class Simulation(Generic[Piece]):
    """Iterates over pieces, of a measure as a rule; `outcome` is there once they are exhausted."""

    outcome: Outcome

    def __init__(self, pieces: Generator[Piece, None, Outcome]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[Piece]:
        self.outcome = yield from self._pieces


def map_tensors(function: Callable[[Tensor], Tensor], context: Any) -> Any:
    """Apply a function to every tensor in nested tuples, lists and dicts."""
    if isinstance(context, Tensor):
        return function(context)
    if isinstance(context, dict):
        return {key: map_tensors(function, value) for key, value in context.items()}
    if isinstance(context, (tuple, list)):
        values = [map_tensors(function, value) for value in context]
        return type(context)(*values) if hasattr(context, "_fields") else type(context)(values)
    return context


def tensors_in(context: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(context, Tensor):
        return [context]
    if isinstance(context, dict):
        context = context.values()
    elif not isinstance(context, (tuple, list)):
        return []
    return [tensor for value in context for tensor in tensors_in(value)]


def take(context: Context, rows: Tensor | slice) -> Context:
    """The rows of every tensor in the context; whatever is not a tensor stays."""
    return map_tensors(lambda tensor: pick(tensor, rows), context)


def check_context(context: Any, place: str = "context") -> None:
    """Refuse numbers that look as if they had one row per chain, but are not a tensor."""
    if isinstance(context, dict):
        for key, value in context.items():
            check_context(value, f"{place}[{key!r}]")
        return
    numbers = isinstance(context, list) and any(isinstance(v, (int, float)) for v in context)
    array = not isinstance(context, Tensor) and bool(getattr(context, "ndim", False))
    if numbers or array:
        raise TypeError(
            f"{place} must be a tensor to have one row per chain, got {type(context).__name__} "
            f"{repr(context)[:60]}; pass torch.as_tensor(…) of it, or bind what is the same for "
            "all chains in the function itself"
        )
    if isinstance(context, (tuple, list)):
        for index, value in enumerate(context):
            check_context(value, f"{place}[{index}]")


def check_call(kernel: Kernel, x0: Start, context: Context, generator: torch.Generator) -> int:
    """The number of chains that a call runs; refuses arguments that cannot go together."""
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {generator!r}; for example "
            "torch.Generator().manual_seed(0)"
        )
    chains = kernel.chains(x0, context)
    if chains == 0:
        raise ValueError("x0 must have at least one row, one for each chain, got 0")
    check_context(context)
    for position, tensor in enumerate(tensors_in(context), start=1):
        if tensor.dim() == 0 or len(tensor) != chains:
            raise ValueError(
                f"context tensor {position} must have one row for each of the {chains} chains, "
                f"got shape {tuple(tensor.shape)}; repeat or expand it along its first "
                "dimension"
            )
    return chains


def count_states(x0: Start, kernel: str) -> int:
    """The number of chains that states x0 start; refuses everything but states."""
    if isinstance(x0, Remembered):
        raise ValueError(
            f"x0 comes from a store that has no state yet for {int((~x0.known).sum())} of "
            f"{len(x0.known)} rows, and {kernel} has no proposal to draw them from; set them "
            "first, store[rows] = …"
        )
    if not isinstance(x0, Tensor) or x0.dim() == 0:
        got = f"shape {tuple(x0.shape)}" if isinstance(x0, Tensor) else repr(x0)
        raise ValueError(
            f"x0 must be a tensor of shape (chains, …), a state for every chain of {kernel} to "
            f"start from, got {got}"
        )
    return len(x0)


def check_rows(name: str, values: Any, x: Tensor) -> None:
    """Refuse what a user's function returned unless it is one number for each row of x."""
    if not isinstance(values, Tensor) or values.shape != x.shape[:1]:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"{name} must return one number for each row of its first argument, here shape "
            f"({x.shape[0]},) for an argument of shape {tuple(x.shape)}, got {got}; "
            "sum over all dimensions but the first"
        )


def check_unchanged(name: str, x: Tensor, version: int) -> None:
    """Refuse a user's function that changed its first argument, known by its earlier version."""
    if x._version != version:
        raise ValueError(
            f"{name} changed its first argument in place, which spoils the states of the chains; "
            "work on a copy, x = x.clone(), or use operations without a trailing underscore"
        )
