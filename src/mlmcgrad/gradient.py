"""The gradient of an expectation under a Markov chain, as one weighted backward pass.

    Ĥ = (1/chains) Σ_chains Σ_j c_j ∇_θ loss_θ(x_j)

The estimator plans the chains, the kernel simulates them and hands over the signed measure
Σ_j c_j δ_{x_j} piece by piece, and the loss is differentiated in chunks of bounded size while the
chains are still running. `.grad` is touched once, at the very end: whatever goes wrong on the way
leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mlmcgrad.estimators import Estimator
from mlmcgrad.kernels import Emit, Kernel
from mlmcgrad.measure import Measure, concatenate, drop, thin
from mlmcgrad.schedules import check_iteration
from mlmcgrad.types import Context, Estimate, FirstBlock, Outcome, Plan, Start, check_rows, take


@final
@dataclass(frozen=True)
class MarkovGradient:
    """Estimates ∇_θ E_π[loss] by chains of a kernel, weighted by an estimator.

    Args:
        kernel: simulates the chains, see `mlmcgrad.kernels`.
        loss: `loss(x, *context) -> (rows,)`, differentiable in the parameters.
        estimator: `Average` or `MLMC`.
        parameters: the tensors to differentiate; by default all leaves that require a gradient
            and that the loss depends on.
        chunk: states in one backward pass. It bounds the memory and changes the result by
            rounding only.
        tolerance: states with a coefficient of at most this size are left out. The default
            leaves out only those of weight 0; a positive one biases the estimate a little.
        thinning: states with a coefficient below this size are left out at random in a way that
            keeps the expectation; 0 (off) by default.

    Example:
        >>> import mlmcgrad as mg
        >>> theta = torch.zeros(2, requires_grad=True)
        >>> kernel = mg.kernels.Finite(torch.tensor([[0.9, 0.1], [0.4, 0.6]]))
        >>> gradient = MarkovGradient(kernel, lambda x: theta[x], mg.MLMC(truncation=64))
        >>> start = torch.zeros(10, dtype=torch.int64)
        >>> estimate = gradient.backward(start, n=1, generator=torch.Generator().manual_seed(0))
        >>> round(theta.grad.sum().item(), 6)
        1.0
    """

    kernel: Kernel
    loss: Callable[..., Tensor]
    estimator: Estimator
    parameters: Iterable[Tensor] | None = field(default=None, kw_only=True)
    chunk: int = field(default=1024, kw_only=True)
    tolerance: float = field(default=0.0, kw_only=True)
    thinning: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.chunk, bool) or not isinstance(self.chunk, int) or self.chunk < 1:
            raise ValueError(f"chunk must be an integer from 1 on, got {self.chunk!r}")
        for name in ("tolerance", "thinning"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number from 0 on, got {value!r}")
        if self.parameters is not None:
            given = (self.parameters,) if isinstance(self.parameters, Tensor) else self.parameters
            object.__setattr__(self, "parameters", tuple(given))
            _check_parameters(self.parameters)

    def backward(self, x0: Start, *context: Any, n: int, generator: torch.Generator) -> Estimate:
        """Add the gradient estimate to `.grad` of the parameters.

        Hooks of a parameter see the gradient of each chunk, as when gradients are accumulated
        over small batches; where a hook must see the whole gradient, use `surrogate`.

        Args:
            x0: where the chains start, (chains, *shape); X_1 is the state after the first
                transition. `None` only with `ISIR`, which then draws the start itself.
            context: handed to `loss` and to the kernel's functions after x; tensors have one row
                per chain.
            n: iteration, counted from 1; schedules are read at n.
            generator: source of all randomness.

        Returns:
            What was spent and what happened.
        """
        tensors, estimate = self.gradient(x0, *context, n=n, generator=generator)
        accumulate(estimate.parameters, tensors)
        return estimate

    def gradient(
        self, x0: Start, *context: Any, n: int, generator: torch.Generator
    ) -> tuple[tuple[Tensor, ...], Estimate]:
        """Return the gradient estimate, leaving `.grad` alone.

        Takes the arguments of `backward`. The tensors belong to `estimate.parameters`, which are
        the `parameters` given or else the leaves found, in the order autograd meets them.
        """
        chains = _check_arguments(x0, context, n, generator)
        total = _Accumulator(self, context, chains)
        plan = self.estimator.plan(chains, n, generator)
        outcome = self.simulate(x0, context, plan, generator, total.add)
        total.flush()
        tensors = total.tensors()
        return tensors, report(plan, outcome, total.value, total.count, total.parameters)

    def surrogate(self, x0: Start, *context: Any, n: int, generator: torch.Generator) -> Tensor:
        """Return a scalar whose `.backward()` is the estimate, to be added to other terms.

        Takes the arguments of `backward`. The states must be kept until the backward pass; their
        activations are kept if there are at most `chunk` of them and computed again otherwise.

        Returns:
            The weighted loss as a differentiable scalar. What was spent is its attribute
            `estimate`.
        """
        chains = _check_arguments(x0, context, n, generator)
        pieces: list[Measure] = []
        plan = self.estimator.plan(chains, n, generator)
        outcome = self.simulate(x0, context, plan, generator, pieces.append)
        measure = concatenate(pieces)
        many = len(measure) > self.chunk
        terms = []
        for begin in range(0, len(measure), self.chunk):
            part = measure[begin : begin + self.chunk]
            arguments = (self.loss, part, context, chains)
            terms.append(
                checkpoint(_weighted, *arguments, use_reentrant=False)
                if many
                else _weighted(*arguments)
            )
        # Thinning may have left no state at all.
        scalar = torch.stack(terms).sum() if terms else torch.zeros((), requires_grad=True)
        check_value(scalar.item())
        found = leaves(scalar) if self.parameters is None else tuple(self.parameters)
        estimate = report(plan, outcome, scalar.item(), len(measure), found)
        scalar.estimate = estimate  # type: ignore[attr-defined]  # a note on the tensor
        return scalar

    def simulate(
        self, x0: Start, context: Context, plan: Plan, generator: torch.Generator, emit: Emit
    ) -> Outcome:
        """Run the planned chains and hand on their measure, without states that carry no weight.

        For those who want the measure itself, for example to look at it; nothing is
        differentiated here.
        """

        def reduced(measure: Measure) -> None:
            if len(measure) and (self.tolerance or not self.thinning):
                measure = drop(measure, self.tolerance)
            if len(measure) and self.thinning:
                measure = thin(measure, self.thinning, generator)
            if len(measure):
                emit(measure)

        return self.kernel.run(x0, context, plan, generator, reduced)


class _Accumulator:
    """Differentiates the loss chunk by chunk and adds up the gradients."""

    def __init__(self, owner: MarkovGradient, context: Context, chains: int) -> None:
        self.loss, self.chunk = owner.loss, owner.chunk
        self.context, self.chains = context, chains
        self.fixed = None if owner.parameters is None else tuple(owner.parameters)
        self.sums: dict[Tensor, Tensor] = {}
        self.waiting: list[Measure] = []
        self.waiting_count = 0
        self.count = 0
        self.value = 0.0
        # A context that was computed from parameters shares its graph between the chunks.
        self.shared = any(isinstance(c, Tensor) and c.requires_grad for c in context)

    def add(self, measure: Measure) -> None:
        # Cut, not joined first: a state is copied at most once on its way into a chunk.
        while self.waiting_count + len(measure) >= self.chunk:
            room = self.chunk - self.waiting_count
            self._differentiate(concatenate([*self.waiting, measure[:room]]))
            self.waiting, self.waiting_count = [], 0
            measure = measure[room:]
        if len(measure):
            self.waiting.append(measure)
            self.waiting_count += len(measure)

    def flush(self) -> None:
        if self.waiting_count:
            self._differentiate(concatenate(self.waiting))
        self.waiting, self.waiting_count = [], 0
        check_value(self.value)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(self.sums) if self.fixed is None else self.fixed

    def tensors(self) -> tuple[Tensor, ...]:
        # Thinning may have left no state at all.
        return tuple(
            self.sums[p] if p in self.sums else torch.zeros_like(p) for p in self.parameters
        )

    def _differentiate(self, measure: Measure) -> None:
        with torch.enable_grad():
            scalar = _weighted(self.loss, measure, self.context, self.chains)
        found = leaves(scalar) if self.fixed is None else self.fixed
        gradients = torch.autograd.grad(
            scalar, found, retain_graph=self.shared, materialize_grads=True
        )
        for leaf, gradient in zip(found, gradients, strict=True):
            # Not in place: autograd may hand out one tensor for several leaves.
            self.sums[leaf] = self.sums[leaf] + gradient if leaf in self.sums else gradient
        self.value += scalar.item()
        self.count += len(measure)


def _weighted(
    loss: Callable[..., Tensor], measure: Measure, context: Context, chains: int
) -> Tensor:
    """Σ_j c_j loss(x_j) / chains, differentiable in the parameters."""
    values = loss(measure.points, *take(context, measure.owner))
    check_rows("loss", values, measure.points)
    if not values.requires_grad:
        raise ValueError(
            "loss does not depend on any tensor that requires a gradient, so there is nothing to "
            "differentiate; set requires_grad=True on the parameters and compute the loss from "
            "them, without torch.no_grad() or .detach()"
        )
    return (measure.coefficient.to(values.dtype) * values).sum() / chains


def accumulate(parameters: Iterable[Tensor], tensors: Iterable[Tensor]) -> None:
    """Add each tensor to `.grad` of its parameter, as a backward pass does."""
    for parameter, tensor in zip(parameters, tensors, strict=True):
        if parameter.grad is None:
            # A copy, because autograd may hand out one tensor for several leaves.
            parameter.grad = tensor.clone()
        else:
            parameter.grad.add_(tensor)


def leaves(scalar: Tensor) -> tuple[Tensor, ...]:
    """The leaves that require a gradient in the graph of a scalar, in the order of a walk."""
    found: dict[Tensor, None] = {}
    todo: list[Any] = [scalar.grad_fn] if scalar.grad_fn else []
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            found[node.variable] = None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return tuple(found)


def report(
    plan: Plan, outcome: Outcome, value: float, count: int, parameters: tuple[Tensor, ...]
) -> Estimate:
    """What a plan and its outcome amount to, as the user sees it."""
    transitions = int(plan.lengths.sum())
    return Estimate(
        value=value,
        lengths=plan.lengths,
        levels=plan.levels,
        transitions=transitions,
        evaluations=outcome.evaluations,
        loss_evaluations=count,
        acceptance=outcome.accepted / transitions,
        invalid=outcome.invalid,
        last=outcome.last,
        parameters=parameters,
    )


def _check_arguments(x0: Any, context: Context, n: int, generator: Any) -> int:
    """Check what `backward` was called with; return the number of chains."""
    check_iteration(n)
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {generator!r}; for example "
            "torch.Generator().manual_seed(0)"
        )
    tensors = [c for c in context if isinstance(c, Tensor)]
    if x0 is None:
        if not tensors or tensors[0].dim() == 0:
            raise ValueError(
                "x0=None needs a context tensor with one row per chain, which says how many "
                "chains there are; got none"
            )
        chains, source = tensors[0].shape[0], "the first context tensor"
    elif isinstance(x0, FirstBlock):
        chains, source = len(x0), "x0"
    elif not isinstance(x0, Tensor) or x0.dim() == 0:
        raise ValueError(f"x0 must be a tensor of shape (chains, …), got {x0!r}")
    else:
        chains, source = x0.shape[0], "x0"
    if chains == 0:
        raise ValueError(f"{source} must have at least one row, one for each chain, got 0")
    for position, c in enumerate(context, start=1):
        if isinstance(c, Tensor) and (c.dim() == 0 or c.shape[0] != chains):
            raise ValueError(
                f"context tensor {position} must have one row for each of the {chains} chains "
                f"(the rows of {source}), got shape {tuple(c.shape)}; repeat or expand it along "
                "its first dimension"
            )
    return int(chains)


def _check_parameters(parameters: Any) -> None:
    if not parameters:
        raise ValueError("parameters must name at least one tensor, got none")
    for i, p in enumerate(parameters):
        if not isinstance(p, Tensor) or not p.requires_grad:
            what = f"shape {tuple(p.shape)}" if isinstance(p, Tensor) else type(p).__name__
            raise ValueError(
                f"parameters must be tensors that require a gradient, number {i} ({what}) does not"
            )


def check_value(value: float) -> None:
    """Refuse a weighted loss that is not a number."""
    if value != value or value in (float("inf"), float("-inf")):
        raise FloatingPointError(
            f"the weighted loss is {value}: loss is not finite on some state of the chains, so "
            "there is no gradient and .grad was left as it was; check loss on the states that "
            "the kernel can reach, or restrict the support of log_density"
        )


__all__ = ["MarkovGradient", "accumulate", "check_value", "leaves", "report"]
