"""The weighted backward pass: Σ_j c_j ∇ loss(x_j), a chunk of states at a time.

Everything that is differentiated in the library is differentiated here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor

from mlmcgrad.kernels.base import Context, check_rows, take, tensors_in
from mlmcgrad.measure import Measure


@final
class WeightedBackward:
    """Adds up the gradients of Σ_j c_j loss(x_j) / divisor over measures.

    Args:
        loss: `loss(x, *context) -> (rows,)`.
        context: tensors have one row per chain.
        divisor: the number of chains for a mean over them, 1 for a sum.
        parameters: the tensors to differentiate; None finds the leaves of each graph.

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
    ) -> None:
        self.value, self.count = 0.0, 0
        self._loss, self._context, self._divisor = loss, context, divisor
        self._fixed = parameters
        self._sums: dict[Tensor, Tensor] = {}
        # A context that was computed from parameters shares its graph between the chunks.
        self._shared = any(tensor.requires_grad for tensor in tensors_in(context))

    def add(self, measure: Measure) -> None:
        """Differentiate one measure in the parameters."""
        self._differentiate(measure, ())

    def add_with_slopes(self, measure: Measure) -> Tensor:
        """The same; returns c_j ∂loss(x_j)/∂x_j / divisor as well, shaped like the points."""
        points = measure.points.detach().requires_grad_()
        (slopes,) = self._differentiate(
            Measure(points, measure.owner, measure.coefficient), (points,)
        )
        return slopes

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that have a gradient, in the order in which autograd met them."""
        return tuple(self._sums) if self._fixed is None else self._fixed

    def gradients(self) -> tuple[Tensor, ...]:
        """One tensor for each of `parameters`; refuses a value that is not finite."""
        check_value(self.value)
        # Thinning may have left no state at all.
        return tuple(
            self._sums[p] if p in self._sums else torch.zeros_like(p) for p in self.parameters
        )

    def _differentiate(self, measure: Measure, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            scalar = weighted_loss(self._loss, measure, self._context, self._divisor)
        parameters = leaves(scalar) if self._fixed is None else self._fixed
        gradients = torch.autograd.grad(
            scalar, (*parameters, *inputs), retain_graph=self._shared, materialize_grads=True
        )
        for leaf, gradient in zip(parameters, gradients, strict=False):
            # Not in place: autograd may return one tensor for several leaves.
            self._sums[leaf] = self._sums[leaf] + gradient if leaf in self._sums else gradient
        self.value += scalar.item()
        self.count += len(measure)
        return gradients[len(parameters) :]


def weighted_loss(
    loss: Callable[..., Tensor], measure: Measure, context: Context, divisor: int
) -> Tensor:
    """Σ_j c_j loss(x_j) / divisor, differentiable in the parameters."""
    values = loss(measure.points, *take(context, measure.owner))
    check_rows("loss", values, measure.points)
    if not values.requires_grad:
        raise ValueError(
            "loss does not depend on any tensor that requires a gradient, so there is nothing to "
            "differentiate; set requires_grad=True on the parameters and compute the loss from "
            "them, without torch.no_grad() or .detach()"
        )
    return (measure.coefficient.to(values.dtype) * values).sum() / divisor


def accumulate(parameters: Iterable[Tensor], gradients: Iterable[Tensor]) -> None:
    """Add each tensor to `.grad` of its parameter, as a backward pass does."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.grad is None:
            # A copy, because autograd may return one tensor for several leaves.
            parameter.grad = gradient.clone()
        else:
            parameter.grad.add_(gradient)


def leaves(scalar: Tensor) -> tuple[Tensor, ...]:
    """The leaves that require a gradient in the graph of a scalar, in the order of a walk."""
    variables: dict[Tensor, None] = {}
    todo: list[Any] = [scalar.grad_fn] if scalar.grad_fn else []
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
