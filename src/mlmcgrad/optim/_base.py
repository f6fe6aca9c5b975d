"""What all adaptive optimizers share: θ_n = θ_{n−1} − γ_n A_{n−1} Ĥ_n, for steps n = 1, 2, ….

Index convention. Steps are counted from 1, as in torch and in `mlmcgrad.schedules`. Step n is the
paper's iteration n − 1: it takes θ_{n−1} to θ_n with the gradient estimate at θ_{n−1}, the matrix
A_{n−1} and the step size γ_n, and every hyperparameter that is a schedule is called with n.

A hyperparameter that may change with n is a number or a schedule. A schedule stays with the
optimizer; its param group holds the value of the latest step as a float. So `state_dict` contains
only numbers and tensors, and any torch LR scheduler can drive an `lr` given as a number. An `lr`
given as a tensor of dimension 0 stays in its param group and is read at each step, as in torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, SupportsIndex, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from mlmcgrad.optim._checks import Ranges, parameter_name, usable
from mlmcgrad.optim._safety import Snapshot, check_parameter_state, check_state, overflow, risky
from mlmcgrad.schedules import Schedule, check_iteration


class Supremum:
    """The supremum of a schedule over 1 … n; for n = 1, 2, … in turn each value is taken once."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._n = 0
        self._value = -float("inf")

    def __call__(self, n: int) -> float:
        """The largest of schedule(1), …, schedule(n)."""
        if n < self._n:
            self._n, self._value = 0, -float("inf")
        for k in range(self._n + 1, n + 1):
            self._value = max(self._value, float(self.schedule(k)))
        self._n = n
        return self._value


class AdaptiveOptimizer(Optimizer, ABC):
    """Base class of the optimizers: hyperparameters, iteration number, and the order of a step.

    Args:
        params: as for every torch optimizer: parameters, named parameters, or param groups.
        defaults: hyperparameters; those named in `_scheduled` may be schedules.
    """

    _scheduled: ClassVar[Ranges]
    """Hyperparameters that may be schedules, and the range of their values; `lr` is among them."""

    _fixed: ClassVar[Ranges]
    """Hyperparameters that are numbers."""

    _ordered: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of hyperparameters of which the first must not exceed the second."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._suprema: list[dict[str, Supremum]] = []  # per group, for those that are schedules
        super().__init__(params, defaults)

    @abstractmethod
    def _check_group(self, group: dict[str, Any], where: str) -> None:
        """Raise if the optimizer cannot use this param group."""

    @abstractmethod
    def _apply(self, group: dict[str, Any], params: list[Tensor], rate: float) -> None:
        """Update state and parameters that have a gradient; rate is −γ_n (+γ_n to maximize)."""

    @abstractmethod
    def _check_values(self, values: dict[str, Any], dtypes: set[torch.dtype], where: str) -> None:
        """Raise if hyperparameters cannot be used with parameters of these types."""

    @abstractmethod
    def _state_shapes(self, group: dict[str, Any], p: Tensor) -> dict[str, tuple[int, ...] | None]:
        """Entries of the state of a parameter and their shapes, None for a number."""

    @abstractmethod
    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """`preconditioner_bounds` of one param group."""

    @property
    def iteration(self) -> int:
        """Number of steps taken: the parameters are θ_n for this n."""
        return int(self.param_groups[0]["step"]) if self.param_groups else 0

    def preconditioner_bounds(
        self, n: SupportsIndex, group: int | None = None
    ) -> tuple[float, float]:
        """The pair (λ_n, λ̄_n) that the theory uses for step n, that is for A_{n−1}.

        The random iterate has P(R = n−1) ∝ γ_n λ_n with this λ_n. Each class says which matrix the
        pair bounds. It depends on the hyperparameters only, never on gradients.

        Args:
            n: step number, n ≥ 1.
            group: index of a param group; None for the smallest λ and the largest λ̄ of all groups.

        Returns:
            Lower and upper bound; a lower bound of 0 means that the hyperparameters imply none.
        """
        n = check_iteration(n)
        indices = range(len(self.param_groups)) if group is None else [group]
        lower, upper = zip(*(self._bounds(index, n) for index in indices), strict=True)
        return min(lower), max(upper)

    def lr_at(self, n: SupportsIndex, group: int = 0) -> float:
        """γ_n of a param group: its schedule at n, or its current `lr` if that is a number."""
        return self._value(group, "lr", check_iteration(n))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take step n = iteration + 1.

        Args:
            closure: evaluates the model, fills the gradients and returns the loss.

        Returns:
            What the closure returned.

        Raises:
            TypeError: a gradient is sparse or complex.
            FloatingPointError: a gradient is not finite, or the step would overflow.
            ValueError: a schedule left its range. After any of these errors the parameters, the
                state and the iteration number are as they were before the call.
        """
        loss: float | None = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        n = self.iteration + 1
        # Everything that can fail comes first, for all groups, before the first change.
        values = [
            {name: self._value(index, name, n) for name in self._scheduled}
            for index in range(len(self.param_groups))
        ]
        chosen, norm = usable(self.param_groups)
        dtypes = [{p.dtype for p in params} for params in chosen]
        for index, current in enumerate(values):
            where = f" at step n={n} in param group {index}"
            self._check_values({**self.param_groups[index], **current}, dtypes[index], where)
        if risky(set().union(*dtypes), norm, n, max(current["lr"] for current in values)):
            snapshot = Snapshot(self.param_groups, self.state)
            try:
                self._step(n, values, chosen)
                finite = snapshot.is_finite()
            except RuntimeError:  # an eigendecomposition of infinite numbers
                finite = False
            if not finite:
                snapshot.put_back()
                raise overflow(norm, n)
        else:
            self._step(n, values, chosen)
        return loss

    def _step(self, n: int, values: list[dict[str, float]], chosen: list[list[Tensor]]) -> None:
        """Take step n with checked hyperparameters, for parameters that have a gradient."""
        for group, current, params in zip(self.param_groups, values, chosen, strict=True):
            lr = current["lr"]
            if isinstance(group["lr"], Tensor):
                del current["lr"]  # the tensor belongs to the user or to an LR scheduler
            group.update(current, step=n)
            if params:
                self._apply(group, params, lr if group["maximize"] else -lr)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the `state_dict` of an optimizer of the same class.

        Raises:
            ValueError: it belongs to another class, or to parameters of other shapes.
        """
        name = type(self).__name__
        required = ("step", "maximize", *self._scheduled, *self._fixed)
        check_state(name, self.param_groups, state_dict, required)
        pairs = zip(self.param_groups, state_dict["param_groups"], strict=False)
        for index, (group, other) in enumerate(pairs):
            for i, (p, key) in enumerate(zip(group["params"], other["params"], strict=False)):
                where = parameter_name(group, index, i)
                of_p = state_dict["state"].get(key, {})
                check_parameter_state(name, of_p, self._state_shapes(group, p), where)
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to optimize; the group joins at the optimizer's current iteration.

        Args:
            param_group: "params" and, optionally, its own hyperparameters, schedules included.
        """
        where = f" in param group {len(self.param_groups)}"
        group = {**self.defaults, **param_group, "step": self.iteration}
        suprema: dict[str, Supremum] = {}
        for name, allowed in self._scheduled.items():
            value = group[name]
            if callable(value):
                suprema[name] = Supremum(value)
                value = value(self.iteration + 1)
            number = allowed.check(name, value, where)
            if name != "lr" or not isinstance(group[name], Tensor):
                group[name] = number
        for name, allowed in self._fixed.items():
            group[name] = allowed.check(name, group[name], where)
        for low, high in self._ordered:
            if group[low] > group[high]:
                raise ValueError(
                    f"{low} must not exceed {high}, got {group[low]!r} and {group[high]!r}{where}"
                )
        super().add_param_group(group)
        try:
            self._check_group(self.param_groups[-1], where)
            dtypes = {p.dtype for p in self.param_groups[-1]["params"]}
            self._check_values(group, dtypes, where)
        except Exception:
            self.param_groups.pop()
            raise
        self._suprema.append(suprema)

    def __getstate__(self) -> dict[str, Any]:
        # torch's version leaves out the attributes of subclasses; copies need their schedules.
        return {**super().__getstate__(), "_suprema": self._suprema}

    def _value(self, index: int, name: str, n: int) -> float:
        """A hyperparameter of a group at step n, checked."""
        group = self.param_groups[index]
        supremum = self._suprema[index].get(name)
        if supremum is None:
            return self._scheduled[name].check(name, group[name], f" in param group {index}")
        if name == "lr" and "initial_lr" in group:
            raise ValueError(
                f"lr of param group {index} is a schedule, but a torch LR scheduler was attached "
                "too; pass lr as a number to use the LR scheduler, or remove the LR scheduler"
            )
        where = f" from its schedule at step n={n} in param group {index}"
        return self._scheduled[name].check(name, supremum.schedule(n), where)

    def _supremum(self, index: int, name: str, n: int) -> float:
        """The supremum over steps 1 … n of a hyperparameter of a group."""
        supremum = self._suprema[index].get(name)
        return float(self.param_groups[index][name]) if supremum is None else supremum(n)
