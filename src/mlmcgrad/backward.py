"""The weighted backward pass: Σ_j c_j ∇ loss(x_j), a chunk of states at a time.

Everything that is differentiated in the library is differentiated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context, check_rows, check_unchanged, take, tensors_in
from mlmcgrad.measure import Measure


@final
class WeightedBackward:
    """Adds up the gradients of Σ_j c_j loss(x_j) / divisor over measures.

    A graph that several chunks share, because the loss uses a tensor that was computed from
    parameters outside of it, is kept until the last of them.

    Args:
        loss: `loss(x, *context) -> (rows,)`.
        context: tensors have one row per chain.
        divisor: the number of chains for a mean over them, 1 for a sum.
        parameters: the tensors to differentiate; None finds the leaves of each graph.
        shared: whether others differentiate measures of the same loss afterwards.
        wide: add up in float64, where the order of the sums is not to matter.

    Attributes:
        value: Σ_j c_j loss(x_j) / divisor so far.
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
        wide: bool = False,
    ) -> None:
        self.value, self.count = 0.0, 0
        self._loss, self._context, self._divisor = loss, context, divisor
        self._fixed, self._wide = parameters, wide
        self._sums: dict[Tensor, Tensor] = {}
        # Whoever computed the context may differentiate its graph again.
        self._shared = shared or any(tensor.requires_grad for tensor in tensors_in(context))

    def add_all(self, measures: Iterable[Measure]) -> None:
        """Differentiate measures in the parameters, one by one."""
        waiting: Measure | None = None
        for measure in measures:
            if waiting is not None:
                self._differentiate(waiting, (), last=False)
            waiting = measure
        if waiting is not None:
            self._differentiate(waiting, (), last=True)

    def add_with_slopes(self, measure: Measure) -> Tensor:
        """One measure; returns c_j ∂loss(x_j)/∂x_j / divisor as well, shaped like the points."""
        points = measure.points.detach().requires_grad_()
        (slopes,) = self._differentiate(
            Measure(points, measure.owner, measure.coefficient), (points,), last=True
        )
        return slopes

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that have a gradient, in the order in which autograd met them."""
        return tuple(self._sums) if self._fixed is None else self._fixed

    def gradients(self) -> tuple[Tensor, ...]:
        """One tensor for each of `parameters`; refuses numbers that are not finite.

        Raises:
            ValueError: the loss was evaluated and depends on none of the parameters.
            FloatingPointError: the value or a gradient is not finite.
        """
        check_value(self.value)
        if self.count and self._fixed and not self._sums:
            raise untouched(len(self._fixed))
        # Thinning may have left no state at all.
        gradients = tuple(
            self._sums[p] if p in self._sums else torch.zeros_like(p) for p in self.parameters
        )
        check_gradients(gradients)
        return gradients

    def _differentiate(
        self, measure: Measure, inputs: tuple[Tensor, ...], *, last: bool
    ) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            values = losses(self._loss, measure, self._context)
        parameters = leaves(values) if self._fixed is None else self._fixed
        c = measure.coefficient.to(values.dtype)
        # The sum itself needs no graph: its gradient in the values is c / divisor.
        gradients = torch.autograd.grad(
            values,
            (*parameters, *inputs),
            c if self._divisor == 1 else c * (1.0 / self._divisor),
            retain_graph=self._shared or not last,
            allow_unused=True,
        )
        for leaf, gradient in zip(parameters, gradients, strict=False):
            if gradient is not None:
                gradient = gradient.double() if self._wide else gradient
                # Not in place: autograd may return one tensor for several leaves.
                self._sums[leaf] = self._sums[leaf] + gradient if leaf in self._sums else gradient
        self.value += (c * values.detach()).sum().item() / self._divisor
        self.count += len(measure)
        slopes = zip(inputs, gradients[len(parameters) :], strict=True)
        return tuple(torch.zeros_like(x) if slope is None else slope for x, slope in slopes)


def weighted_loss(
    loss: Callable[..., Tensor], measure: Measure, context: Context, divisor: int
) -> Tensor:
    """Σ_j c_j loss(x_j) / divisor, differentiable in the parameters."""
    values = losses(loss, measure, context)
    return (measure.coefficient.to(values.dtype) * values).sum() / divisor


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
    """Add each tensor to `.grad` of its parameter, as a backward pass does."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.grad is None:
            # A copy, because autograd may return one tensor for several leaves.
            parameter.grad = gradient.clone()
        else:
            parameter.grad.add_(gradient)


def leaves(values: Tensor) -> tuple[Tensor, ...]:
    """The leaves that require a gradient in the graph of a tensor, in the order of a walk."""
    if values.is_leaf:
        return (values,) if values.requires_grad else ()
    variables: dict[Tensor, None] = {}
    todo: list[Any] = [values.grad_fn]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            variables[node.variable] = None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return tuple(variables)


def check_value(value: float) -> None:
    """Refuse a weighted loss that is not a number."""
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the weighted loss is {value}: loss is not finite on some state of the chains, so "
            "there is no gradient and .grad was left as it was; check loss on the states that "
            "the kernel can reach, or restrict the support of log_density"
        )


def untouched(parameters: int) -> ValueError:
    """What to raise when the loss depends on none of the parameters that were named."""
    return ValueError(
        f"parameters: the loss depends on none of the {parameters} tensors given, so their "
        "gradient would be exactly 0; pass the tensors that the loss computes with, or leave the "
        "argument out. (A copy of a MarkovGradient has copies of its parameters: its loss must be "
        "copied with them, as a method of a model is, while a function holds the originals)"
    )


def check_gradients(gradients: tuple[Tensor, ...]) -> None:
    """Refuse a gradient with an entry that is NaN or infinite."""
    # One pass without a copy; entries that cancel or overflow in the sum are looked at.
    if all(math.isfinite(gradient.sum().item()) for gradient in gradients):
        return
    for number, gradient in enumerate(gradients):
        bad = int((~gradient.isfinite()).sum())
        if bad:
            raise FloatingPointError(
                f"the gradient of parameter {number} has {bad} entries that are NaN or infinite, "
                f"out of {gradient.numel()}, although the loss is finite; .grad was left as it "
                "was. Look for a root, a norm or a division at 0 in loss, and for torch.where "
                "around it: the branch that is not taken must be finite too"
            )
