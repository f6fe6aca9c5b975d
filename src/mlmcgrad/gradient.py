"""The gradient of an expectation under a Markov chain, as one weighted backward pass.

    Ĥ = (1/chains) Σ_chains Σ_j c_j ∇_θ loss_θ(x_j)

The estimator draws the lengths of the chains, the kernel simulates them and yields the signed
measure Σ_j c_j δ_{x_j} piece by piece, and the loss is differentiated in chunks of bounded size
while the chains are still running. `.grad` is changed once, at the very end, so an error leaves it
as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, SupportsIndex, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mlmcgrad._checks import non_negative, whole
from mlmcgrad.backward import (
    Estimate,
    WeightedBackward,
    accumulate,
    check_touched,
    check_value,
    leaves,
    refused,
    weighted_loss,
)
from mlmcgrad.estimators import MAX_TRANSITIONS, Estimator, check_budget
from mlmcgrad.kernels import ISIR, Regenerative
from mlmcgrad.kernels.base import (
    Context,
    Kernel,
    Outcome,
    Simulation,
    Start,
    StepKernel,
    check_call,
    check_places,
    transform,
)
from mlmcgrad.lengths import Lengths, check_lengths
from mlmcgrad.measure import Floats, Measure, certainty, chunks, drop, thin, uniforms

# With fewer transitions or chains than this a warning could be a matter of chance.
_ENOUGH_TRANSITIONS, _ENOUGH_CHAINS = 64, 8


@final
@dataclass(frozen=True)
class MarkovGradient:
    """Estimates ∇_θ E_π[loss] by chains of a kernel, weighted by an estimator.

    Args:
        kernel: simulates the chains, see `mlmcgrad.kernels`.
        loss: `loss(x, *context) -> (rows,)`, differentiable in the parameters.
        estimator: weights the states of a chain: `MLMCSum`, `MLMC`, `Average` or `Stages`.
        parameters: the tensors to differentiate, for example `model.parameters()`; those that
            require no gradient are left out. By default all leaves that require a gradient and on
            which the loss depends.
        chunk: states in one backward pass; by default 1024 on a processor, and 8192 on other
            devices, or a part of these that fits into memory. It bounds the memory and changes the
            result only by rounding: the loss of a state must not depend on other states, so
            BatchNorm in training mode raises an error.
        reduction: `"mean"` or `"sum"` over the chains.
        tolerance: states with a coefficient of at most this size are left out. The default leaves
            out only states of weight 0; a positive value adds a small bias.
        thinning: states with a coefficient below this size are left out at random in a way that
            keeps the expectation; 0 (off) by default.
        max_transitions: limit for one chain, and for all chains of a call in expectation; an
            estimator that needs more raises an error before the simulation starts.

    A copy (`copy.deepcopy`, or pickled and read back) differentiates copies of `parameters`. Its
    loss must be copied with it: a bound method of a model is copied, a function is not.

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
    chunk: int | None = field(default=None, kw_only=True)
    reduction: Literal["mean", "sum"] = field(default="mean", kw_only=True)
    tolerance: float = field(default=0.0, kw_only=True)
    thinning: float = field(default=0.0, kw_only=True)
    max_transitions: int = field(default=MAX_TRANSITIONS, kw_only=True)

    def __post_init__(self) -> None:
        rule = "kernel must be a Kernel, for example kernels.MALA(...)"
        _check_has(self.kernel, rule, "chains", "run")
        rule = "estimator must be an Estimator, for example MLMCSum(64)"
        _check_has(self.estimator, rule, "draw", "longest", "expected_length")
        if not callable(self.loss):
            raise TypeError(f"loss must be a function, loss(x, *context), got {self.loss!r}")
        if self.chunk is not None:
            whole(self.chunk, "chunk")
        whole(self.max_transitions, "max_transitions")
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {self.reduction!r}")
        non_negative(self.tolerance, "tolerance")
        non_negative(self.thinning, "thinning")
        if self.parameters is not None:
            object.__setattr__(self, "parameters", _differentiable(self.parameters))

    def backward(
        self,
        x0: Start,
        *context: Any,
        n: SupportsIndex | None = None,
        generator: torch.Generator,
        scale: float | Tensor | None = None,
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
            scale: a factor of the gradients, with `torch.amp.GradScaler`
                `scaler.scale(torch.ones((), device=…))`. Numbers that are not finite are then
                not refused: `scaler.step` skips the step.

        Returns:
            What was spent and what happened.
        """
        gradients, estimate = self.gradient(x0, *context, n=n, generator=generator, scale=scale)
        accumulate(estimate.parameters, gradients)
        return estimate

    def gradient(
        self,
        x0: Start,
        *context: Any,
        n: SupportsIndex | None = None,
        generator: torch.Generator,
        lengths: Lengths | None = None,
        scale: float | Tensor | None = None,
    ) -> tuple[tuple[Tensor, ...], Estimate]:
        """Return the gradient estimate, leaving `.grad` alone.

        Takes the arguments of `backward`. The tensors belong to `estimate.parameters`, which are
        the `parameters` given or else the leaves found, in the order autograd meets them. `lengths`
        has the lengths of the chains if they are drawn already; n is not read then.
        """
        shared = False
        if lengths is None:
            lengths = self.draw_lengths(x0, context, n, generator)
        else:
            check_lengths(check_call(self.kernel, x0, context, generator), lengths)
            shared = True  # whoever parts may have further chains of the same loss
        total = WeightedBackward(
            self.loss,
            context,
            divisor=self._divisor(lengths),
            parameters=self._fixed,
            shared=shared,
            scale=scale,
        )
        simulation = self.simulate(x0, context, lengths, generator)
        with refused():
            total.add_all(chunks(simulation, self.chunk))
        gradients = total.gradients(simulation.read)
        warn_of(simulation.outcome, lengths)
        return gradients, Estimate.of(
            lengths,
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
        A loss in half precision needs `torch.amp.GradScaler`, as every mean over many rows does;
        `backward` does without.

        Returns:
            The weighted loss as a differentiable scalar, and what was spent.
        """
        lengths = self.draw_lengths(x0, context, n, generator)
        simulation = self.simulate(x0, context, lengths, generator)
        parts = list(chunks(simulation, self.chunk))
        again = partial(checkpoint, weighted_loss, use_reentrant=False)
        evaluate = again if len(parts) > 1 else weighted_loss
        terms = [evaluate(self.loss, part, context, self._divisor(lengths)) for part in parts]
        # Thinning may have left no state at all.
        if terms:
            scalar = torch.stack(terms).sum()
        else:
            device = simulation.ended.last.device
            scalar = torch.zeros((), device=device, requires_grad=True)
        found = leaves(scalar)
        (value,) = simulation.read(scalar.detach())
        check_value(value)
        if terms:
            check_touched(self._fixed, found)
        warn_of(simulation.outcome, lengths)
        estimate = Estimate.of(
            lengths,
            simulation.outcome,
            value=value,
            loss_evaluations=sum(map(len, parts)),
            parameters=found if self._fixed is None else self._fixed,
        )
        return scalar, estimate

    def draw_lengths(
        self, x0: Start, context: Context, n: SupportsIndex | None, generator: torch.Generator
    ) -> Lengths:
        """Check the arguments of a call, and let the estimator draw the lengths of its chains.

        For those who simulate by themselves; `gradient` and its like begin with it.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "gradients cannot be computed under torch.inference_mode(); leave that block, or "
                "use torch.no_grad() around what needs no gradient"
            )
        chains = check_call(self.kernel, x0, context, generator)
        n = None if n is None else whole(n, "n")
        lengths = self.estimator.draw(chains, n, generator)
        check_budget(self.estimator, chains, n, self.max_transitions, longest=lengths.bound)
        if lengths.endless and isinstance(self.kernel, (StepKernel, ISIR, Regenerative)):
            raise ValueError(
                f"estimator: {self.estimator} has no truncation, and the chains of "
                f"{type(self.kernel).__name__} need one: the variance of their levels falls as "
                "2^-l, so the variance of the sum is finite only for continuation > 1/2, and its "
                "mean length only for continuation < 1/2; give a finite truncation, or use "
                "kernels.Importance"
            )
        return lengths

    def simulate(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Simulation[Measure]:
        """Run the planned chains: an iterator over their measure without weightless states.

        For those who want the measure itself, for example to look at it; nothing is
        differentiated here. `outcome` of what is returned is there when the iterator has ended.
        """
        check_places(x0, context, generator)
        # One number for each chain, drawn first: how its states come in pieces does not matter.
        uniform = uniforms(len(lengths.levels), generator) if self.thinning else np.zeros(0)
        pieces = self.kernel.run(x0, context, lengths, generator)
        return Simulation(transform(pieces, lambda measure: self._reduced(measure, uniform)))

    def _reduced(self, measure: Measure, uniform: Floats) -> tuple[Measure, ...]:
        """Return the measure without negligible states; nothing if none is left."""
        if len(measure) and (self.tolerance or not self.thinning):
            measure = drop(measure, self.tolerance)
        if len(measure) and self.thinning:
            probability = certainty(measure.coefficient.cpu().numpy(), self.thinning)
            measure, _ = thin(measure, probability, uniform)
        return (measure,) if len(measure) else ()

    def _divisor(self, lengths: Lengths) -> int:
        return len(lengths.levels) if self.reduction == "mean" else 1

    @property
    def _fixed(self) -> tuple[Tensor, ...] | None:
        return None if self.parameters is None else tuple(self.parameters)


def _check_has(part: Any, rule: str, *methods: str) -> None:
    """Refuse a part that lacks a method, and a class in place of its instance."""
    missing = [method for method in methods if not callable(getattr(part, method, None))]
    if missing or isinstance(part, type):
        lacks = f"which has no {missing[0]}()" if missing else "which is a class"
        raise TypeError(f"{rule}, got {part!r}, {lacks}")


def _differentiable(parameters: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The tensors that require a gradient; there must be one."""
    tensors = (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)
    # A tensor that is named twice, as tied layers are, has one gradient.
    trained = tuple(dict.fromkeys(tensor for tensor in tensors if tensor.requires_grad))
    if not trained:
        raise ValueError(
            f"parameters must hold a tensor that requires a gradient, got none among "
            f"{len(tensors)}; set requires_grad=True, or leave the argument out"
        )
    return trained


def warn_of(outcome: Outcome, lengths: Lengths) -> None:
    """Warn of chains that cannot have explored anything.

    The texts are constant, so that Python shows each of them once in a process.
    """
    transitions, chains = int(lengths.longest.sum()), len(lengths.levels)
    # A chain that evaluates no model, of a transition matrix, may well stay where it is.
    if outcome.evaluations and transitions >= _ENOUGH_TRANSITIONS and outcome.accepted == 0:
        text = _INVALID if outcome.invalid >= transitions else _STUCK
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    elif chains >= _ENOUGH_CHAINS and 2 * outcome.collapsed > chains:
        warnings.warn(_COLLAPSED, RuntimeWarning, stacklevel=4)
    if lengths.cut:
        warnings.warn(_CUT, RuntimeWarning, stacklevel=4)


_INVALID = (
    "every proposal was refused because the density or its gradient was NaN or +inf there, so the "
    "estimate is that of the starting states; check log_density (or log_weight) on what the kernel "
    "proposes"
)
_STUCK = (
    "no transition moved any chain, so the estimate is that of the starting states; lower the step "
    "size, or use a proposal that is closer to the target"
)
_COLLAPSED = (
    "in most chains one candidate of the first step has more than 99.9 % of the weight, so the "
    "others are evaluated for nothing; use a proposal that is closer to the target (if it is being "
    "trained, wait)"
)
_CUT = (
    "a simulation drew a level beyond the budget of its infinite truncation and was cut there; the "
    "estimator has the bias of the longest length within the budget, in this call and in others: "
    "raise max_transitions of the estimator, or lower its continuation"
)
