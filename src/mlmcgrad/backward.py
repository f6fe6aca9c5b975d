"""The weighted backward pass: Σ_j c_j ∇ loss(x_j), a chunk of states at a time.

All gradients in the library are computed here, with `torch.autograd.grad`, which calls no hooks on
`.grad`. DistributedDataParallel and FSDP average gradients in such hooks, so modules wrapped in
them are rejected: the processes would silently diverge.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import call
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from mlmcgrad.kernels.base import (
    MEMORY,
    Context,
    Outcome,
    check_rows,
    check_rows_apart,
    check_unchanged,
    graph_nodes,
    precise,
    take,
    tensors_in,
)
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure, read, ship

Result = TypeVar("Result")

_REMEDY = (
    "call the bare module (its `.module`) in loss and kernel, and add up the gradients of the "
    "processes by mg.distributed.reduce(parameters) or mg.distributed.Sharded; or use `surrogate`, "
    "whose backward pass calls the hooks"
)


@final
class WeightedBackward:
    """Adds up the gradients of Σ_j c_j loss(x_j) / divisor over measures.

    If the loss uses a tensor that was computed from parameters outside of it, several chunks share
    a graph, which is kept until the last of them.

    If a chunk does not fit into the memory of a device, its halves are differentiated one by one.

    Args:
        loss: `loss(x, *context) -> (rows,)`.
        context: tensors have one row per chain.
        divisor: the number of chains for a mean over them, 1 for a sum.
        parameters: the tensors to differentiate; None finds the leaves of each graph.
        shared: whether others differentiate measures of the same loss afterwards.
        scale: a factor of the gradients, so that they do not underflow in half precision. With it,
            values that are not finite are accepted.

    Attributes:
        value: Σ_j c_j loss(x_j) / divisor, once `gradients` has read it.
        count: states that were differentiated so far.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        context: Context,
        *,
        divisor: int,
        parameters: tuple[Tensor, ...] | None,
        shared: bool = False,
        scale: float | Tensor | None = None,
    ) -> None:
        self.value, self.count = math.nan, 0
        self._loss, self._context, self._divisor = loss, context, divisor
        self._fixed, self._scale = parameters, scale
        self._sums: dict[Tensor, Tensor] = {}
        self._value: float | Tensor = 0.0
        # Whoever computed the context may differentiate its graph again.
        self._shared = shared or any(tensor.requires_grad for tensor in tensors_in(context))
        self._outside = False

    def add_all(self, measures: Iterable[Measure]) -> None:
        """Differentiate measures in the parameters, one by one."""
        waiting = iter(measures)
        measure = next(waiting, None)
        while measure is not None:
            following = next(waiting, None)
            self._fitting(self._differentiate, measure, last=following is None)
            measure = following

    def add_with_slopes(self, measure: Measure) -> Tensor:
        """One measure; returns c_j ∂loss(x_j)/∂x_j / divisor as well, shaped like the points."""

        def slopes(part: Measure, last: bool) -> Tensor:
            points = part.points.detach().requires_grad_()
            part = Measure(points, part.owner, part.coefficient)
            (found,) = self._differentiate(part, last, (points,))
            return torch.zeros_like(points) if found is None else found

        parts = self._fitting(slopes, measure, last=True)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that have a gradient, in the order in which autograd met them."""
        return tuple(self._sums) if self._fixed is None else self._fixed

    def gradients(
        self, read: Callable[..., list[float]] = read, *, further: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor, ...]:
        """One tensor for each of `parameters`; refuses numbers that are not finite.

        Args:
            read: reads numbers from a device; `Simulation.read` reads its own with them.
            further: gradients that were made elsewhere, to be checked with these.

        Raises:
            ValueError: the loss was evaluated and depends on none of the parameters.
            FloatingPointError: the value or a gradient is not finite.
        """
        # Thinning may have left no state at all.
        gradients = tuple(
            self._sums[p].to(p.dtype) if p in self._sums else torch.zeros_like(p)
            for p in self.parameters
        )
        value = torch.as_tensor(self._value, dtype=torch.float64)
        sizes, more = _sizes(gradients), _sizes(further)
        self.value, *found = read(value, *sizes, *more)
        if self._scale is None:
            check_value(self.value)
        if self.count:
            check_touched(self._fixed, self._sums)
        if self._scale is None:
            check_gradients(gradients, found[: len(sizes)])
            check_gradients(further, found[len(sizes) :])
        return gradients

    def _fitting(
        self, work: Callable[[Measure, bool], Result], measure: Measure, *, last: bool
    ) -> list[Result]:
        """Return what work makes of a measure, or of parts of it that fit into memory."""
        try:
            return [work(measure, last)]
        except torch.OutOfMemoryError:
            if len(measure) == 1:
                raise
        warnings.warn(MEMORY, RuntimeWarning, stacklevel=2)
        middle = len(measure) // 2
        first = self._fitting(work, measure[:middle], last=False)
        return first + self._fitting(work, measure[middle:], last=last)

    def _differentiate(
        self, measure: Measure, last: bool, inputs: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor | None, ...]:
        several = self._shared or not last
        with torch.enable_grad():
            begin = _number_of_the_next_node() if several and not self.count else 0
            values = losses(self._loss, measure, self._context)
        if not self.count:  # the graph of the first chunk is that of the others
            check_rows_apart(values)
            self._outside = several and _is_older(values, begin)
        parameters = leaves(values) if self._fixed is None else self._fixed
        c = ship(measure.coefficient.to(_wide(values)), values.device)
        half = c.dtype != values.dtype
        # The sum itself needs no graph: its gradient in the values is c / divisor. In half
        # precision that would be 0 where there are many chains: those gradients are divided.
        weights = c.to(values.dtype) if half else c * (1.0 / self._divisor)
        with precise(values.device):
            gradients = torch.autograd.grad(
                values,
                (*parameters, *inputs),
                weights if self._scale is None else weights * self._scale,
                # A compiled graph can be differentiated only once.
                retain_graph=self._outside and several,
                allow_unused=True,
            )
        if half:
            gradients = tuple(g if g is None else g.to(_wide(g)) / self._divisor for g in gradients)
        for leaf, gradient in zip(parameters, gradients, strict=False):
            if gradient is not None:
                # Not in place: autograd may return one tensor for several leaves.
                self._sums[leaf] = self._sums[leaf] + gradient if leaf in self._sums else gradient
        value = (c * values.detach()).sum()
        on_host = value.device.type == "cpu"
        self._value = self._value + (value.item() if on_host else value.double()) / self._divisor
        self.count += len(measure)
        return gradients[len(parameters) :]


def weighted_loss(
    loss: Callable[..., Tensor], measure: Measure, context: Context, divisor: int
) -> Tensor:
    """Σ_j c_j loss(x_j) / divisor, differentiable in the parameters."""
    values = losses(loss, measure, context)
    check_rows_apart(values)
    coefficient = ship(measure.coefficient.to(_wide(values)), values.device)
    return (coefficient * values).sum() / divisor


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the type in which numbers like these are summed: float32 for half precision."""
    return torch.promote_types(tensor.dtype, torch.float32)


def losses(loss: Callable[..., Tensor], measure: Measure, context: Context) -> Tensor:
    """loss(x_j) at the points of a measure, (points,), differentiable in the parameters."""
    points = measure.points
    version = points._version
    values = loss(points, *take(context, measure.owner))
    check_rows("loss", values, points)
    check_unchanged("loss", points, version)
    if not values.requires_grad:
        raise ValueError(
            "loss does not depend on any tensor that requires a gradient, so there is nothing to "
            "differentiate; set requires_grad=True on the parameters and compute the loss from "
            "them, without torch.no_grad() or .detach()"
        )
    return values


def accumulate(parameters: Iterable[Tensor], gradients: Iterable[Tensor]) -> None:
    """Add each tensor to `.grad` of its parameter, all of them or none.

    Raises:
        ValueError: a gradient does not fit the `.grad` that is there; nothing was changed.
    """
    updates: list[Callable[[], object]] = []
    there, added = [], []
    for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        before = parameter.grad
        like = parameter if before is None else before
        if (like.shape, like.device) != (gradient.shape, gradient.device):
            raise ValueError(
                f".grad of parameter {number} is {tuple(like.shape)} on {like.device}, and its "
                f"gradient {tuple(gradient.shape)} on {gradient.device}; call zero_grad() after "
                "moving or reshaping parameters"
            )
        if before is None:
            # A copy, because autograd may return one tensor for several leaves.
            updates.append(partial(setattr, parameter, "grad", gradient.clone()))
        elif before.is_sparse:
            updates.append(partial(setattr, parameter, "grad", gradient + before))
        else:
            there.append(before.detach())
            added.append(gradient.to_dense())
    if there:
        updates.append(partial(torch._foreach_add_, there, added))
    at_once(updates)


def at_once(updates: Iterable[Callable[[], object]]) -> None:
    """Call functions that are written in C, one after the other, without a break for signals.

    It is one call into C, too: Python runs no handler, such as that of Ctrl-C, before it ends.
    """
    deque(map(call, updates), maxlen=0)


def leaves(values: Tensor) -> tuple[Tensor, ...]:
    """The leaves that require a gradient in the graph of a tensor, in the order of a walk."""
    if values.is_leaf:
        return (values,) if values.requires_grad else ()
    accumulating = (n for n in graph_nodes(values) if n.name() == "torch::autograd::AccumulateGrad")
    return tuple(dict.fromkeys(node.variable for node in accumulating))


def _number_of_the_next_node() -> int:
    """Return a number that no node of a graph has that was made before in this thread."""
    node: Any = torch.ones((), requires_grad=True).view(()).grad_fn
    return int(node._sequence_nr())


def _is_older(values: Tensor, begin: int) -> bool:
    """Return whether a graph has a node with a smaller number: it was not made by the loss."""
    leaf = "torch::autograd::AccumulateGrad"
    return any(node.name() != leaf and node._sequence_nr() < begin for node in graph_nodes(values))


def check_value(value: float) -> None:
    """Refuse a weighted loss that is not a number."""
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the weighted loss is {value}: loss is not finite on some state of the chains, so "
            "there is no gradient and .grad was left as it was; check loss on the states that "
            "the kernel can reach, or restrict the support of log_density"
        )


def check_touched(parameters: tuple[Tensor, ...] | None, touched: Iterable[Tensor]) -> None:
    """Refuse a loss that depends on none of the parameters that were named."""
    if parameters and set(parameters).isdisjoint(touched):
        raise ValueError(
            f"parameters: the loss depends on none of the {len(parameters)} tensors given, so "
            "their gradient would be exactly 0; pass the tensors that the loss computes with, or "
            "leave the argument out. (A copy of a MarkovGradient has copies of its parameters: "
            "its loss must be copied with them, as a method of a model is, while a function holds "
            "the originals)"
        )


def _sizes(gradients: tuple[Tensor, ...]) -> list[Tensor]:
    """Return numbers that are not finite if an entry of a gradient is not.

    One pass without a copy: on a processor the sums, and elsewhere the norms, which take the
    launches of one gradient for all of them.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        kinds.setdefault((gradient.device, gradient.dtype), []).append(gradient.to_dense())
    sizes = []
    for (device, dtype), some in kinds.items():
        if device.type == "cpu":
            sizes += [gradient.sum() for gradient in some]
        else:
            wide = torch.float32 if dtype.itemsize < 4 else None
            sizes.append(torch.stack(torch._foreach_norm(some, 2, wide)).sum())
    return sizes


def check_gradients(gradients: tuple[Tensor, ...], sizes: list[float] | None = None) -> None:
    """Refuse a gradient with an entry that is NaN or infinite.

    Args:
        gradients: the gradients.
        sizes: what was read of `_sizes`, if it was.
    """
    # Entries that cancel or overflow in a sum are looked at.
    if all(map(math.isfinite, read(*_sizes(gradients)) if sizes is None else sizes)):
        return
    for number, gradient in enumerate(gradients):
        bad = int((~gradient.to_dense().isfinite()).sum())
        if bad:
            raise FloatingPointError(
                f"the gradient of parameter {number} has {bad} entries that are NaN or infinite, "
                f"out of {gradient.numel()}, although the loss is finite; .grad was left as it "
                "was. Look for a root, a norm or a division at 0 in loss, and for torch.where "
                "around it: the branch that is not taken must be finite too. A loss in half "
                "precision may overflow in a sum over many states: lower chunk"
            )


@contextmanager
def refused() -> Iterator[None]:
    """Refuse wrapped modules that are called inside, where there are other processes.

    Raises:
        TypeError: the message names the wrapper and what to do.
    """
    if not (dist.is_available() and dist.is_initialized()):
        yield
        return
    wrappers = _imported(
        "nn.parallel.DistributedDataParallel",
        "distributed.fsdp.FullyShardedDataParallel",
        "distributed.fsdp.FSDPModule",
    )

    def check(module: nn.Module, _: Any) -> None:
        if isinstance(module, wrappers):
            name = next(kind for kind in wrappers if isinstance(module, kind)).__name__
            raise TypeError(
                f"loss or kernel calls a module in {name}, whose gradients would not be averaged "
                f"over the processes; {_REMEDY}"
            )

    handle = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


def check_plain(parameters: Iterable[Tensor]) -> None:
    """Refuse parameters of which a process has only a part."""
    kinds = _imported("distributed.tensor.DTensor", "distributed.fsdp.FlatParameter")
    for number, parameter in enumerate(parameters):
        if isinstance(parameter, kinds):
            raise TypeError(
                f"parameters must be whole in every process, number {number} is a part of one "
                f"({type(parameter).__name__}), as FSDP makes them; {_REMEDY}"
            )


def _imported(*names: str) -> tuple[type, ...]:
    """Return the classes of torch whose modules are imported: others cannot have been used."""
    paths = (f"torch.{name}".rpartition(".") for name in names)
    kinds = (getattr(sys.modules.get(module), name, None) for module, _, name in paths)
    return tuple(kind for kind in kinds if kind is not None)


@dataclass(frozen=True)
class Estimate:
    """The cost of one gradient estimate, and what happened during its simulation.

    Attributes:
        value: the weighted loss Σ_j c_j loss(x_j), mean (or sum) over chains.
        lengths: transitions made by each chain, (chains,).
        levels: level K drawn for each chain, (chains,); 0 where the estimator has no levels.
            If K is beyond the truncation, `MLMC` uses only the base term, and `MLMCSum` all levels
            up to the truncation.
        transitions: total over the chains, `lengths.sum()`.
        evaluations: states at which the density (or the network behind the importance weights)
            was evaluated, total over the chains.
        loss_evaluations: states at which the loss was evaluated and differentiated.
        acceptance: share of the transitions that moved the chain.
        invalid: proposals refused because the density or its gradient was NaN or +∞ there.
        last: final state of each chain, (chains, *shape): a warm start for the next call.
        parameters: the tensors that received a gradient, in the order of `gradient.gradient`.
        cut: chains that the budget of an infinite truncation made shorter. The bias is that of the
            longest length within the budget, whether or not a chain of this call was cut.
    """

    value: float
    lengths: Tensor
    levels: Tensor
    transitions: int
    evaluations: int
    loss_evaluations: int
    acceptance: float
    invalid: int
    last: Tensor
    parameters: tuple[Tensor, ...]
    cut: int = 0

    @classmethod
    def of(
        cls,
        lengths: Lengths,
        outcome: Outcome,
        *,
        value: float,
        loss_evaluations: int,
        parameters: tuple[Tensor, ...],
    ) -> Estimate:
        """Return the estimate of chains with these lengths and this outcome."""
        transitions = int(lengths.longest.sum())
        return cls(
            value=value,
            lengths=lengths.longest,
            levels=lengths.levels,
            transitions=transitions,
            evaluations=outcome.evaluations,
            loss_evaluations=loss_evaluations,
            acceptance=outcome.accepted / transitions,
            invalid=outcome.invalid,
            last=outcome.last,
            parameters=parameters,
            cut=lengths.cut,
        )
