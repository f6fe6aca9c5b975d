"""The gradient of an expectation under a Markov chain, as one weighted backward pass.

    Ĥ = (1/chains) Σ_chains Σ_j c_j ∇_θ loss_θ(x_j)

The estimator plans the chains, the kernel simulates them and yields the signed measure
Σ_j c_j δ_{x_j} piece by piece, and the loss is differentiated in chunks of bounded size while the
chains are still running. `.grad` is touched once, at the very end: whatever goes wrong on the way
leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsIndex, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mlmcgrad.backward import (
    WeightedBackward,
    accumulate,
    check_value,
    leaves,
    untouched,
    weighted_loss,
)
from mlmcgrad.estimate import Estimate, warn_of
from mlmcgrad.estimators import MAX_TRANSITIONS, Estimator, check_budget
from mlmcgrad.kernels.base import Context, Kernel, Pieces, Simulation, Start, check_call
from mlmcgrad.measure import Measure, certainty, chunks, drop, thin
from mlmcgrad.plan import Plan, check_planned
from mlmcgrad.ranges import non_negative, whole
from mlmcgrad.schedules import check_iteration
from mlmcgrad.wrapped import refused


@final
@dataclass(frozen=True)
class MarkovGradient:
    """Estimates ∇_θ E_π[loss] by chains of a kernel, weighted by an estimator.

    Args:
        kernel: simulates the chains, see `mlmcgrad.kernels`.
        loss: `loss(x, *context) -> (rows,)`, differentiable in the parameters.
        estimator: `Average` or `MLMC`.
        parameters: the tensors to differentiate, for example `model.parameters()`, of which
            those that require no gradient are left out; by default all leaves that require a
            gradient and that the loss depends on.
        chunk: states in one backward pass. It bounds the memory and changes the result by
            rounding only.
        reduction: `"mean"` or `"sum"` over the chains.
        tolerance: states with a coefficient of at most this size are left out. The default
            leaves out only those of weight 0; a positive one biases the estimate a little.
        thinning: states with a coefficient below this size are left out at random in a way that
            keeps the expectation; 0 (off) by default.
        max_transitions: what one chain may take, and all chains of a call in expectation; an
            estimator that asks for more is refused before anything is simulated.

    A copy (`copy.deepcopy`, or pickled and read back) differentiates copies of `parameters`. Its
    loss must have been copied with it, as a method of a model is; a function is not.

    Example:
        >>> import mlmcgrad as mg
        >>> theta = torch.zeros(2, requires_grad=True)
        >>> kernel = mg.kernels.Finite(torch.tensor([[0.9, 0.1], [0.4, 0.6]]))
        >>> gradient = MarkovGradient(kernel, lambda x: theta[x], mg.MLMC(truncation=64))
        >>> start = torch.zeros(10, dtype=torch.int64)
        >>> estimate = gradient.backward(start, generator=torch.Generator().manual_seed(0))
        >>> round(theta.grad.sum().item(), 6)
        1.0
    """

    kernel: Kernel
    loss: Callable[..., Tensor]
    estimator: Estimator
    parameters: Iterable[Tensor] | None = field(default=None, kw_only=True)
    chunk: int = field(default=1024, kw_only=True)
    reduction: Literal["mean", "sum"] = field(default="mean", kw_only=True)
    tolerance: float = field(default=0.0, kw_only=True)
    thinning: float = field(default=0.0, kw_only=True)
    max_transitions: int = field(default=MAX_TRANSITIONS, kw_only=True)

    def __post_init__(self) -> None:
        _check_has(self.kernel, "kernel", ("chains", "run"), "kernels.MALA(…)")
        _check_has(self.estimator, "estimator", ("plan", "longest", "expected_length"), "MLMC(64)")
        if not callable(self.loss):
            raise TypeError(f"loss must be a function, loss(x, *context), got {self.loss!r}")
        whole(self.chunk, "chunk")
        whole(self.max_transitions, "max_transitions")
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {self.reduction!r}")
        non_negative(self.tolerance, "tolerance")
        non_negative(self.thinning, "thinning")
        if self.parameters is not None:
            object.__setattr__(self, "parameters", _differentiable(self.parameters))

    def backward(
        self, x0: Start, *context: Any, n: SupportsIndex | None = None, generator: torch.Generator
    ) -> Estimate:
        """Add the gradient estimate to `.grad` of the parameters.

        Hooks of a parameter see the gradient of each chunk, as when gradients are accumulated
        over small batches; where a hook must see the whole gradient, use `surrogate`. Hooks that
        wait for `.grad` are not called; a module in DistributedDataParallel or FSDP, which have
        such hooks, is refused.

        Args:
            x0: where the chains start, (chains, *shape); X_1 is the state after the first
                transition. `None` only with `ISIR`, which then draws the start itself.
            context: passed to `loss` and to the kernel's functions after x; tensors, alone or in
                tuples, lists and dicts, have one row per chain.
            n: iteration, counted from 1; schedules are read at n. It may be left out where
                nothing is scheduled.
            generator: source of all randomness.

        Returns:
            What was spent and what happened.
        """
        gradients, estimate = self.gradient(x0, *context, n=n, generator=generator)
        accumulate(estimate.parameters, gradients)
        return estimate

    def gradient(
        self,
        x0: Start,
        *context: Any,
        n: SupportsIndex | None = None,
        generator: torch.Generator,
        plan: Plan | None = None,
    ) -> tuple[tuple[Tensor, ...], Estimate]:
        """Return the gradient estimate, leaving `.grad` alone.

        Takes the arguments of `backward`. The tensors belong to `estimate.parameters`, which are
        the `parameters` given or else the leaves found, in the order autograd meets them. `plan`
        has the lengths of the chains if they are drawn already; n is not read then.
        """
        shared = False
        if plan is None:
            plan = self.plan(x0, context, n, generator)
        else:
            check_planned(check_call(self.kernel, x0, context, generator), plan)
            shared = True  # whoever plans may have further chains of the same loss
        total = self.total(context, plan, shared=shared)
        simulation = self.simulate(x0, context, plan, generator)
        with refused():
            total.add_all(chunks(simulation, self.chunk))
        gradients = total.gradients()
        warn_of(simulation.outcome, plan)
        return gradients, Estimate.of(
            plan,
            simulation.outcome,
            value=total.value,
            loss_evaluations=total.count,
            parameters=total.parameters,
        )

    def surrogate(
        self, x0: Start, *context: Any, n: SupportsIndex | None = None, generator: torch.Generator
    ) -> tuple[Tensor, Estimate]:
        """Return a scalar whose `.backward()` is the estimate, to be added to other terms.

        Takes the arguments of `backward`. The states must be kept until the backward pass; their
        activations are kept if there are at most `chunk` of them and computed again otherwise.

        Returns:
            The weighted loss as a differentiable scalar, and what was spent.
        """
        plan = self.plan(x0, context, n, generator)
        simulation = self.simulate(x0, context, plan, generator)
        parts = list(chunks(simulation, self.chunk))
        terms = []
        for part in parts:
            arguments = (self.loss, part, context, self._divisor(plan))
            terms.append(
                checkpoint(weighted_loss, *arguments, use_reentrant=False)
                if len(parts) > 1
                else weighted_loss(*arguments)
            )
        # Thinning may have left no state at all.
        scalar = torch.stack(terms).sum() if terms else torch.zeros((), requires_grad=True)
        check_value(scalar.item())
        found = leaves(scalar)
        if terms and self._fixed and not set(self._fixed) & set(found):
            raise untouched(len(self._fixed))
        warn_of(simulation.outcome, plan)
        estimate = Estimate.of(
            plan,
            simulation.outcome,
            value=scalar.item(),
            loss_evaluations=sum(map(len, parts)),
            parameters=found if self._fixed is None else self._fixed,
        )
        return scalar, estimate

    def plan(
        self, x0: Start, context: Context, n: SupportsIndex | None, generator: torch.Generator
    ) -> Plan:
        """Check what a method was called with, and let the estimator plan its chains.

        For those who simulate by themselves; `gradient` and its like begin with it.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "gradients cannot be computed under torch.inference_mode(); leave that block, or "
                "use torch.no_grad() around what needs no gradient"
            )
        chains = check_call(self.kernel, x0, context, generator)
        n = None if n is None else check_iteration(n)
        check_budget(self.estimator, chains, n, self.max_transitions)
        return self.estimator.plan(chains, n, generator)

    def simulate(
        self, x0: Start, context: Context, plan: Plan, generator: torch.Generator
    ) -> Simulation[Measure]:
        """Run the planned chains: an iterator over their measure without weightless states.

        For those who want the measure itself, for example to look at it; nothing is
        differentiated here. `outcome` of what is returned is there when the iterator has ended.
        """
        longest = int(plan.longest.max())
        if longest > self.max_transitions:
            raise ValueError(
                f"plan has a chain of {longest:,} transitions, beyond max_transitions = "
                f"{self.max_transitions:,}; make it shorter, or raise max_transitions"
            )
        return Simulation(self._reduced(self.kernel.run(x0, context, plan, generator), generator))

    def total(self, context: Context, plan: Plan, *, shared: bool = False) -> WeightedBackward:
        """What adds up the gradients of the measure of planned chains, piece by piece.

        For those who differentiate it by themselves, for example in several processes; `shared`
        says that a graph outside of the loss is needed again afterwards.
        """
        return WeightedBackward(
            self.loss, context, divisor=self._divisor(plan), parameters=self._fixed, shared=shared
        )

    def _reduced(self, pieces: Pieces, generator: torch.Generator) -> Pieces:
        simulation = Simulation(pieces)
        for measure in simulation:
            if len(measure) and (self.tolerance or not self.thinning):
                measure = drop(measure, self.tolerance)
            if len(measure) and self.thinning:
                probability = certainty(measure.coefficient.cpu().numpy(), self.thinning)
                measure, _ = thin(measure, probability, generator)
            if len(measure):
                yield measure
        return simulation.outcome

    def _divisor(self, plan: Plan) -> int:
        return len(plan.levels) if self.reduction == "mean" else 1

    @property
    def _fixed(self) -> tuple[Tensor, ...] | None:
        return None if self.parameters is None else tuple(self.parameters)


def _check_has(part: Any, name: str, methods: tuple[str, ...], example: str) -> None:
    """Refuse a part that lacks a method, the class itself among others."""
    missing = [method for method in methods if not callable(getattr(part, method, None))]
    if missing or isinstance(part, type):
        lacks = f", which has no {missing[0]}()" if missing else ", which is a class"
        raise TypeError(f"{name} must be one, for example {example}, got {part!r}{lacks}")


def _differentiable(parameters: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The tensors that require a gradient; there must be one."""
    tensors = (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"parameters must be tensors, number {i} is {type(tensor).__name__}")
    # A tensor that is named twice, as tied layers are, has one gradient.
    trained = tuple(dict.fromkeys(tensor for tensor in tensors if tensor.requires_grad))
    if not trained:
        raise ValueError(
            f"parameters must hold a tensor that requires a gradient, got none among "
            f"{len(tensors)}; set requires_grad=True, or leave the argument out"
        )
    return trained
