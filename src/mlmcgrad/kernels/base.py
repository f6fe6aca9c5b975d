"""The kernel protocol: a kernel turns lengths into a signed measure on states.

A simulation is a generator: it yields the measure Σ_j c_j δ_{x_j} piece by piece, while chains are
still running, and returns its `Outcome`. Shapes: the chain dimension comes first everywhere,
x: (chains, *shape).

**Step by step.** `StepKernel` moves all chains one step at a time. Chains are sorted by length, so
the ones still running are always the first `active` rows: when some end, the others are a slice,
and no work is done for a finished chain. Steps are made in blocks; noise is drawn for a block at a
time, and the trajectory of a block becomes a measure before the next one starts, so memory does not
depend on the length of the chains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, final

import torch
from torch import Tensor

from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure, concatenate, drop, merge, merge_runs, pick, read, ship
from mlmcgrad.store import Remembered

Context: TypeAlias = tuple[Any, ...]
"""What `log_density`, `loss`, … take after x: tensors with one row a chain, alone or in tuples,
lists and dicts. Anything else is passed through unchanged."""

Start: TypeAlias = Any
"""Where chains start: states, (chains, *shape), or whatever else the kernel knows."""


class Fault(NamedTuple):
    """Chains that cannot start from their x0."""

    chains: Tensor  # (chains,) bool, or bool of one number where it is all of them or none
    error: Callable[[], Exception]  # what to raise if there is one


def check(fault: Fault | None) -> None:
    """Raise the error of a fault if a chain has it."""
    if fault is not None and bool(fault.chains.any()):
        raise fault.error()


class Unread(NamedTuple):
    """Counts of an outcome that are still on a device, one number each."""

    accepted: Tensor
    invalid: Tensor | None = None
    fault: Fault | None = None


@dataclass(frozen=True)
class Outcome:
    """The report of a kernel at the end of its chains; see `Estimate` for the fields."""

    last: Tensor  # (chains, *shape)
    evaluations: int
    accepted: float
    invalid: int
    collapsed: int = 0  # chains in whose first step one candidate has nearly all the weight
    unread: Unread | None = None  # to be added; `Simulation` reads them

    def read(self, *numbers: Tensor) -> tuple[Outcome, list[float]]:
        """Return the outcome with all counts on the host, and further numbers: one wait.

        Raises:
            Exception: a chain could not start; that of the fault.
        """
        if self.unread is None:
            return self, read(*numbers)
        accepted, invalid, fault = self.unread
        none = torch.zeros((), device=accepted.device)
        bad = none if fault is None else fault.chains.sum()
        counts = accepted, none if invalid is None else invalid, bad
        moves, refused, faulty, *found = read(*counts, *numbers)
        if faulty:
            check(fault)
        outcome = replace(self, accepted=moves, invalid=int(refused), unread=None)
        return outcome, found


Pieces: TypeAlias = Generator[Measure, None, Outcome]


class Kernel(Protocol):
    """The protocol of kernels for `MarkovGradient`."""

    def chains(self, x0: Start, context: Context) -> int:
        """Return how many chains this start holds, or raise a ValueError that says why not."""

    def run(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Pieces:
        """Simulate the planned chains from x0: yield their measure, return the outcome."""


Piece = TypeVar("Piece")
New = TypeVar("New")


class Simulation(Generic[Piece]):
    """Iterates over pieces, of a measure as a rule; `outcome` is there once they are exhausted."""

    ended: Outcome
    """The outcome as the pieces returned it; some of its counts may be on a device."""

    def __init__(self, pieces: Generator[Piece, None, Outcome]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[Piece]:
        self.ended = yield from self._pieces

    @property
    def outcome(self) -> Outcome:
        """The outcome, with all its counts on the host."""
        self.read()
        return self.ended

    def read(self, *numbers: Tensor) -> list[float]:
        """Read the counts of the outcome, and return further numbers that come with them."""
        self.ended, found = self.ended.read(*numbers)
        return found


def transform(
    pieces: Generator[Piece, None, Outcome], function: Callable[[Piece], Iterable[New]]
) -> Generator[New, None, Outcome]:
    """Yield what the function makes of each piece, and return the outcome of the pieces."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        yield from function(piece)


def map_tensors(function: Callable[[Tensor], Any], context: Any) -> Any:
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
    """Return the tensors in nested tuples, lists and dicts, in order."""
    found: list[Tensor] = []
    map_tensors(found.append, context)
    return found


def take(context: Context, rows: Tensor | slice) -> Context:
    """Return the rows of every tensor in the context; whatever is not a tensor stays."""
    if isinstance(rows, Tensor):  # sent to a device once
        rows = next((ship(rows, tensor.device) for tensor in tensors_in(context)), rows)
    return map_tensors(lambda tensor: pick(tensor, rows), context)


def check_context(context: Any, place: str = "context") -> None:
    """Reject array-like data that appear to have one row per chain but are not tensors."""
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
    """Return the number of chains of a call; refuse arguments that do not fit together."""
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


def check_place(name: str, part: Tensor | torch.Generator, chains: Tensor) -> None:
    """Refuse a part of a call that is on another device than the chains."""
    here, there = part.device, chains.device
    # A generator of the present GPU may leave out its number.
    if here.type == there.type and (here.index == there.index or here.index is None):
        return
    moved = f"tensor.to({str(there)!r})"
    if isinstance(part, torch.Generator):
        moved = f"torch.Generator({str(there)!r}).manual_seed(0)"
    raise ValueError(
        f"{name} must be on the device of the chains, {there}, got {here}; for example {moved}"
    )


def check_places(x0: Start, context: Context, generator: torch.Generator) -> None:
    """Reject a call whose context or generator is on a different device from its chains.

    The device of the chains is that of x0, or of the context if the kernel draws the start.
    """
    start = x0.points if isinstance(x0, Remembered) else x0
    of_context = tensors_in(context)
    chains = start if isinstance(start, Tensor) else next(iter(of_context), None)
    if chains is not None:
        for position, tensor in enumerate(of_context, start=1):
            check_place(f"context tensor {position}", tensor, chains)
        check_place("generator", generator, chains)


def count_states(x0: Start, kernel: str) -> int:
    """Return the number of chains that states x0 start; refuse everything but states."""
    if isinstance(x0, Remembered):
        raise ValueError(
            f"x0 comes from store.start(rows), and {kernel} has no proposal to draw missing states "
            f"from ({int((~x0.known).sum())} of {len(x0.known)} rows); set them first, "
            "store[rows] = …, and start from store[rows]"
        )
    if not isinstance(x0, Tensor) or x0.dim() == 0:
        raise ValueError(
            f"x0 must be a tensor of shape (chains, …), a state for every chain of {kernel} to "
            f"start from, got {described(x0)}"
        )
    return len(x0)


def described(value: Any) -> str:
    """Return dtype and shape of a tensor as text, or what it is instead."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return repr(value)[:60]


HALF = (torch.float16, torch.bfloat16)
_AS_IT_IS = nullcontext()


def judged(values: Tensor) -> Tensor:
    """Numbers that a decision depends on: not in half precision, whatever the states are."""
    return values.float() if isinstance(values, Tensor) and values.dtype in HALF else values


def precise(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast, for the library's own arithmetic and backward passes.

    A user's density, step and loss are called outside of it, with autocast as the caller has it.
    """
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return _AS_IT_IS


def check_rows(name: str, values: Any, x: Tensor) -> None:
    """Refuse what a user's function returned unless it is one number for each row of x."""
    if not isinstance(values, Tensor) or values.shape != x.shape[:1]:
        raise ValueError(
            f"{name} must return one number for each row of its first argument, here shape "
            f"({len(x)},) for an argument of shape {tuple(x.shape)}, got {described(values)}; "
            "sum over all dimensions but the first"
        )


def check_unchanged(name: str, x: Tensor, version: int) -> None:
    """Refuse a user's function that changed its first argument, known by its earlier version."""
    if x._version != version:
        raise ValueError(
            f"{name} changed its first argument in place, which spoils the states of the chains; "
            "work on a copy, x = x.clone(), or use operations without a trailing underscore"
        )


def check_rows_apart(values: Tensor) -> None:
    """Refuse losses that were normalised over their rows, so that they depend on the chunk."""
    for node in graph_nodes(values):
        trained = "BatchNorm" in node.name() and getattr(node, "_saved_training", False)
        # InstanceNorm is computed as the normalisation of one row.
        if trained and len(node._saved_input) == len(values) > 1:
            raise ValueError(
                "loss normalises over its rows, by BatchNorm in training mode: the loss of a "
                "state would depend on the other states of its chunk; call eval() on that module, "
                "or use LayerNorm or GroupNorm"
            )


def graph_nodes(values: Tensor) -> Iterator[Any]:
    """Iterate over the nodes of a tensor's graph, visiting each once."""
    todo: list[Any] = [] if values.grad_fn is None else [values.grad_fn]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)


MEMORY = (
    "the memory of the device does not suffice for a chunk of states, so its halves are "
    "computed one by one, which costs time in every call; lower chunk"
)

S = TypeVar("S", bound="tuple[Tensor, ...]")

# Numbers in the trajectory of one block, and its steps: enough to make the cost per block
# vanish, small enough to stay in the cache. A constant, because the noise depends on it.
_BLOCK_NUMBERS = 2**18
_BLOCK_STEPS = 1024
# Numbers of a path on a device that wait until the points without a weight are left out.
_WAITING_NUMBERS = 2**23
# Long blocks are a multiple of this, so that compiled kernels can take as many steps at a time.
STRIDE = 8


class Position(NamedTuple):
    """State of a kernel whose next step needs nothing but the position."""

    x: Tensor  # (chains, *shape)


class Walk(NamedTuple, Generic[S]):
    """Some steps of all chains."""

    state: S  # after the last step
    path: Tensor  # (steps + 1, chains, *shape): the position before them, and after each step
    moved: Tensor  # (steps, chains) bool: whether a step changed the position
    valid: Tensor | None  # (steps, chains) bool: false for a proposal that could not be used


class Block(NamedTuple):
    """Some steps of the chains that still run."""

    chains: Tensor  # (active,), on the host: which ones, the longest first
    ending: int  # how many of them, the last ones, have made their last step
    step: int  # how many steps they had made before
    path: Tensor  # (steps + 1, active, *shape): where they were, and after each step
    moved: Tensor  # (steps, active) bool


class StepKernel(ABC, Generic[S]):
    """A kernel that moves all chains one step at a time; this base class implements `run`.

    A state is a NamedTuple of tensors whose first dimension is the chain. Its first field is the
    position x; the other fields are values that the next step reuses.
    """

    evaluations_per_step: ClassVar[int] = 1
    """Density evaluations that one step of one chain takes; without a density, 1 or 0."""

    @property
    def fixed_shapes(self) -> bool:
        """Whether all blocks have one number of steps, and few numbers of chains."""
        return False

    @abstractmethod
    def start(self, x: Tensor, context: Context) -> tuple[S, int]:
        """Return the state at x, and the density evaluations it took for each chain."""

    @abstractmethod
    def fault(self, state: S) -> Fault | None:
        """Say which chains cannot start in this state, if that depends on their numbers.

        It is looked at before the first step on a processor, and after the last one on another
        device, where looking means waiting.
        """

    @abstractmethod
    def noise(self, steps: int, x: Tensor, generator: torch.Generator) -> Any:
        """Randomness for a block of steps, in the form that `walk` takes it."""

    @abstractmethod
    def walk(self, state: S, noise: Any, context: Context) -> Walk[S]:
        """Make a block of steps; `steps` makes them one by one."""

    @final
    def chains(self, x0: Start, context: Context) -> int:
        """One for each row of x0."""
        return count_states(x0, type(self).__name__)

    @final
    def run(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Pieces:
        """Run every chain for its planned length; its measure comes block by block.

        It has points of weight 0 too. Lengths and weights are known on the host, and what is known
        there is never read from a device.
        """
        device, discrete = x0.device, not (x0.is_floating_point() or x0.is_complex())
        total, host = len(lengths.levels), device.type == "cpu"
        carried = torch.zeros(total, dtype=torch.float64, device=device)
        part, owner, started = lengths, torch.empty(0), False
        waiting: list[Measure] = []
        numbers = 0
        simulation = Simulation(self.blocks(x0, context, lengths.longest, generator))
        for block in simulation:
            chains, ending, step, path, moved = block
            if step == 0:
                owner = ship(chains, device)
            if step == 0 or len(chains) < len(owner):
                part, owner = lengths.select(chains), owner[: len(chains)]
                carried = carried[: len(chains)]
            weights = part.step_weights(step + 1, step + len(moved))
            # A burn-in has no part in the measure.
            started = started or bool(weights.any())
            if started:
                weights, last = ship(weights, device), 0 if discrete else ending
                measure, carried = merge_runs(path, moved, weights, carried, owner, last)
                # Discrete states come back again and again: one point each is enough.
                waiting.append(merge(drop(measure)) if discrete and host else measure)
                if discrete and ending:
                    waiting.append(Measure(*(t[-ending:] for t in (path[-1], owner, carried))))
            numbers += path.numel()
            # To merge points, or to select those with a weight, means to wait for a device.
            if host or numbers > _WAITING_NUMBERS:
                yield from waiting if host else _together(waiting, total, merging=discrete)
                waiting, numbers = [], 0
        yield from _together(waiting, total, merging=discrete)
        return simulation.ended

    @final
    def blocks(
        self, x0: Tensor, context: Context, lengths: Tensor, generator: torch.Generator
    ) -> Generator[Block, None, Outcome]:
        """Run every chain for its full length, yielding the results block by block.

        `run` turns these blocks into a measure. For the same generator state, the trajectories are
        the same as in `run`.

        Args:
            x0: where the chains start, (chains, *shape).
            context: as for `run`.
            lengths: transitions of each chain, (chains,), on the host.
            generator: source of all randomness.
        """
        order = lengths.argsort(descending=True, stable=True)
        rows = ship(order, x0.device)
        last, context = torch.empty_like(x0), take(context, rows)
        state, at_start = self.start(x0.detach()[rows], context)
        fault = self.fault(state)
        if x0.device.type == "cpu":
            check(fault)
            fault = None
        step, moves, refused = 0, [], []
        segments = list(_segments(lengths))
        room, done = len(rows), 0  # rows that take a step, and steps that they have taken
        fixed, walk = self.fixed_shapes, Walk(state, x0, x0, None)

        for number, (active, end) in enumerate(segments):
            following = segments[number + 1][0] if number + 1 < len(segments) else 0
            while step < end:
                if step == done:
                    room = _room(room, active) if fixed else active
                    state = type(state)(*(s[:room] for s in walk.state))
                    context = take(context, slice(room))
                    count = STRIDE if fixed else min(end - step, _block_steps(state[0]))
                    with torch.no_grad():
                        noise = self.noise(count, state[0], generator)
                        walk = self.walk(state, noise, context)
                    done += count
                _, path, moved, valid = walk
                if fixed:  # chains end within a block, and those that ended continue unseen
                    part = slice(step - done + count, min(end, done) - done + count)
                    path, moved = path[part.start : part.stop + 1, :active], moved[part, :active]
                    valid = None if valid is None else valid[part, :active]
                ending = active - following if done >= end else 0
                yield Block(order[:active], ending, step, path, moved)
                moves.append(moved.sum())
                refused += [] if valid is None else [(~valid).sum()]
                step = min(end, done)
            last.index_copy_(0, rows[following:active], path[-1][following:])

        transitions = int(lengths.sum())
        evaluations = at_start * len(lengths) + self.evaluations_per_step * transitions
        none = rows.new_zeros(())
        unread = Unread(sum(moves, none), sum(refused, none), fault)
        return Outcome(last, evaluations, 0, 0, unread=unread)


def _together(waiting: list[Measure], chains: int, *, merging: bool) -> Iterator[Measure]:
    """Yield measures as one; equal states are merged within each of them, by one sort of all."""
    if waiting and merging:
        apart = [
            Measure(m.points, m.owner + number * chains, m.coefficient)
            for number, m in enumerate(waiting)
        ]
        m = merge(concatenate(apart))
        yield Measure(m.points, m.owner % chains, m.coefficient)
    elif waiting:
        yield concatenate(waiting)


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


def _segments(lengths: Tensor) -> Iterator[tuple[int, int]]:
    """(chains still running, step until which they all run), for lengths in descending order."""
    for end in lengths.unique().tolist():
        yield int((lengths >= end).sum()), int(end)


def _room(room: int, active: int) -> int:
    """Return the number of rows that take a step: a quarter of them as often as that suffices."""
    while room // 4 >= active:
        room //= 4
    return room


def _block_steps(x: Tensor) -> int:
    steps = max(1, min(_BLOCK_STEPS, _BLOCK_NUMBERS // max(1, x.numel())))
    return steps if steps < STRIDE else steps - steps % STRIDE
