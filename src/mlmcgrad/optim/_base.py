"""What all adaptive optimizers share: θ_n = θ_{n−1} − γ_n A_{n−1} Ĥ_n, for steps n = 1, 2, ….

Index convention. Steps are counted from 1, as in torch and in `mlmcgrad.schedules`. Step n is the
paper's iteration n − 1: it takes θ_{n−1} to θ_n with the gradient estimate at θ_{n−1}, the matrix
A_{n−1} and the step size γ_n, and every hyperparameter that is a schedule is called with n.

A hyperparameter that may change with n is a number or a schedule. A schedule stays with the
optimizer; its param group holds the value of the latest step as a float. So `state_dict` contains
only numbers and tensors, and any torch LR scheduler can drive an `lr` given as a number. An `lr`
given as a tensor of dimension 0 stays in its param group and is read at each step, as in torch.

Overflow. A square of 1e20 is infinite in float32, and an infinite entry of the state would keep its
coordinate from ever moving again, or turn the parameters into NaN. So a step whose numbers come
near the largest of their dtype is checked afterwards, and undone if something is not finite.

Half precision. The state of parameters in float16 or bfloat16 is float32, and so is the arithmetic
of a step: a sum of squares in bfloat16 stops growing at 256 times its terms, and A with it.

Checks. Every check runs before anything is changed, so an error leaves the parameters, the state
and the iteration number as they were before the call. All gradients are checked by one number, the
only one that a step reads from an accelerator; with `check_finite=False` it reads none.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, SupportsIndex, TypeAlias, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from mlmcgrad._checks import whole
from mlmcgrad.schedules import Schedule, as_schedule

# Part of the largest number of a dtype that a bound on the numbers of a step may reach.
_FAR = 1e-3


@dataclass(frozen=True)
class Range:
    """A closed interval of floats, and how an error message describes it."""

    text: str
    low: float
    high: float

    def check(self, name: str, value: Any, where: str = "") -> float:
        """Return the value as a float if it lies in the range.

        Args:
            name: the argument, as the user wrote it.
            value: a Python or numpy number, or a tensor of dimension 0.
            where: where it came from, for example " at step n=3 of param group 0".
        """
        number = value
        if type(value) is not float:  # the common case, at every step, needs no closer look
            number = value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
            if isinstance(number, bool) or not isinstance(number, Real):
                as_schedule(value, name)  # says what is accepted, unless the value is a schedule
                raise TypeError(f"{name} must be a number, got {value!r}{where}")
            number = float(number)
        if not self.low <= number <= self.high:
            raise ValueError(f"{name} must be {self.text}, got {value!r}{where}")
        return number


@dataclass(frozen=True)
class RangePair:
    """Two numbers in the same interval, like `betas` in torch."""

    each: Range

    def check(self, name: str, value: Any, where: str = "") -> tuple[float, float]:
        """Return the pair as floats if both lie in the range."""
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise TypeError(f"{name} must be a pair of numbers, got {value!r}{where}")
        first, second = (self.each.check(f"{name}[{i}]", v, where) for i, v in enumerate(value))
        return first, second


Ranges: TypeAlias = Mapping[str, Range]

_SMALLEST, _LARGEST = math.nextafter(0.0, 1.0), math.nextafter(math.inf, 0.0)
NON_NEGATIVE = Range("a finite number ≥ 0", 0.0, _LARGEST)
POSITIVE = Range("a finite number > 0", _SMALLEST, _LARGEST)
POSITIVE_OR_INFINITE = Range("a number > 0 (or math.inf)", _SMALLEST, math.inf)
FRACTION = Range("in [0, 1)", 0.0, math.nextafter(1.0, 0.0))
EPS = Range(
    "in (0, 1000] (usually 1e-4; steps are at most lr·|gradient|/eps, and the paper's ε is 1/eps)",
    _SMALLEST,
    1000.0,
)


class Supremum:
    """The supremum of a schedule over 1 … n; for n = 1, 2, … in turn each value is taken once."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._n, self._value = 0, -math.inf

    def __call__(self, n: int) -> float:
        """Return the largest of schedule(1), …, schedule(n)."""
        if n < self._n:
            self._n, self._value = 0, -math.inf
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

    _fixed: ClassVar[Mapping[str, Range | RangePair]]
    """Hyperparameters that are numbers."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._suprema: list[dict[str, Supremum]] = []  # per group, for those that are schedules
        super().__init__(params, defaults)

    @abstractmethod
    def _check(self, group: dict[str, Any], params: list[Tensor], where: str) -> None:
        """Raise if a param group with these hyperparameters cannot update these parameters."""

    @abstractmethod
    def _apply(self, group: dict[str, Any], params: list[Tensor], rate: float) -> None:
        """Update state and parameters that have a gradient; rate is −γ_n (+γ_n to maximize)."""

    @abstractmethod
    def _initial_state(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        """Return the state of a parameter before its first gradient: numbers and tensors."""

    @abstractmethod
    def _bounds(self, index: int, n: int) -> tuple[float, float]:
        """Return `preconditioner_bounds` of one param group."""

    @property
    def iteration(self) -> int:
        """Number of steps taken: the parameters are θ_n for this n."""
        return int(self.param_groups[0]["step"]) if self.param_groups else 0

    def preconditioner_bounds(
        self, n: SupportsIndex, group: int | None = None
    ) -> tuple[float, float]:
        """Return the pair (λ_n, λ̄_n) that the theory uses for step n, that is for A_{n−1}.

        The random iterate has P(R = n−1) ∝ γ_n λ_n with this λ_n. Each class says which matrix the
        pair bounds. It depends on the hyperparameters only, never on gradients.

        Args:
            n: step number, n ≥ 1.
            group: index of a param group; None for the smallest λ and the largest λ̄ of all groups.

        Returns:
            Lower and upper bound; a lower bound of 0 means that the hyperparameters imply none.
        """
        n = whole(n, "n")
        indices = range(len(self.param_groups)) if group is None else [group]
        lower, upper = zip(*(self._bounds(index, n) for index in indices), strict=True)
        return min(lower), max(upper)

    def lr_at(self, n: SupportsIndex, group: int = 0) -> float:
        """Return γ_n of a param group: its schedule at n, or its current `lr` if it is a number."""
        return self._value(group, "lr", whole(n, "n"))

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
        reach = 0.0  # a bound of lr times the largest eigenvalue of A
        for index, current in enumerate(values):
            group = {**self.param_groups[index], **current}
            self._check(group, chosen[index], f" at step n={n} in param group {index}")
            reach = max(reach, group["lr"] * group.get("upper", 1.0 / group.get("eps", 1.0)))
        dtypes = {p.dtype for params in chosen for p in params}
        if risky(dtypes, norm, n, reach):
            undo = self._restorer()
            try:
                self._step(n, values, chosen)
                finite = self._is_finite()
            except RuntimeError:  # an eigendecomposition of infinite numbers
                finite = False
            if not finite:
                undo()
                raise FloatingPointError(
                    f"step {n} would overflow the parameters or the state: the gradient has the "
                    f"norm {norm:.3g}; nothing was changed. Bound the gradient "
                    "(torch.nn.utils.clip_grad_norm_), lower lr, or use float64"
                )
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

    def _is_finite(self) -> bool:
        """Return whether the parameters and the state are finite."""
        tensors = [p for group in self.param_groups for p in group["params"]]
        tensors += [t for s in self.state.values() for t in s.values() if isinstance(t, Tensor)]
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def _restorer(self) -> Callable[[], None]:
        """Return a function that restores the parameters, state and hyperparameters."""
        groups = [dict(group) for group in self.param_groups]
        params = [(p, p.detach().clone()) for group in groups for p in group["params"]]
        states = {p: copy.deepcopy(state) for p, state in self.state.items()}

        def restore() -> None:
            for group, values in zip(self.param_groups, groups, strict=True):
                group.update(values)
            for p, before in params:
                p.copy_(before)
            self.state.clear()
            self.state.update(states)

        return restore

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the `state_dict` of an optimizer of the same class.

        Raises:
            ValueError: it belongs to another class, or to parameters of other shapes.
        """
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
            raise ValueError("state_dict must be what state_dict() of an optimizer returns")
        difference = self._difference(state_dict)
        if difference:
            raise ValueError(
                f"state_dict is not one of this {type(self).__name__}: {difference}; load the "
                "state of an optimizer of the same class that was made for the same parameters"
            )
        super().load_state_dict(state_dict)
        # torch casts a state to the dtype of its parameter, which is half of it in half precision.
        for group, other in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for p, key in zip(group["params"], other["params"], strict=True):
                for name, value in state_dict["state"].get(key, {}).items():
                    if isinstance(value, Tensor) and self.state[p][name].dtype != state_dtype(p):
                        self.state[p][name] = value.to(p.device, state_dtype(p))

    def _difference(self, state_dict: dict[str, Any]) -> str | None:
        """Return how a state_dict differs from those of this optimizer; torch counts parameters."""
        required = ("step", "maximize", *self._scheduled, *self._fixed)
        pairs = zip(self.param_groups, state_dict["param_groups"], strict=False)
        for index, (group, other) in enumerate(pairs):
            missing = [key for key in required if key not in other]
            if missing:
                return f"its param group {index} has no {missing[0]!r}"
            for i, (p, key) in enumerate(zip(group["params"], other["params"], strict=False)):
                saved = _shapes(state_dict["state"].get(key, {}))  # empty before the first gradient
                expected = _shapes(self._initial_state(group, p)) if saved else {}
                if saved != expected:
                    where = parameter_name(group, index, i)
                    return f"the state of {where} has the shapes {saved}, not {expected}"
        return None

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
        for name, fixed in self._fixed.items():
            group[name] = fixed.check(name, group[name], where)
        super().add_param_group(group)
        try:
            self._check(group, self.param_groups[-1]["params"], where)
        except Exception:
            self.param_groups.pop()
            raise
        self._suprema.append(suprema)

    def __getstate__(self) -> dict[str, Any]:
        # torch's version leaves out the attributes of subclasses; copies need their schedules.
        return {**super().__getstate__(), "_suprema": self._suprema}

    def _value(self, index: int, name: str, n: int) -> float:
        """Return a hyperparameter of a group at step n, checked."""
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
        """Return the supremum over steps 1 … n of a hyperparameter of a group."""
        supremum = self._suprema[index].get(name)
        return float(self.param_groups[index][name]) if supremum is None else supremum(n)


def _shapes(state: dict[str, Any]) -> dict[str, tuple[int, ...] | None]:
    return {k: tuple(v.shape) if isinstance(v, Tensor) else None for k, v in state.items()}


def state_dtype(p: Tensor) -> torch.dtype:
    """Return the dtype of the state of a parameter: its own, and float32 in half precision."""
    return torch.float32 if p.dtype.itemsize < 4 else p.dtype


def risky(dtypes: Iterable[torch.dtype], norm: float, n: int, reach: float) -> bool:
    """Return whether step n could overflow.

    Args:
        dtypes: of the parameters that it moves.
        norm: of all gradients together.
        n: step number; sums of squares are at most n times the largest, unless a step was risky.
        reach: a bound of lr times the largest eigenvalue of A.
    """
    for dtype in dtypes:
        squares, most = norm * norm * n, torch.finfo(dtype).max
        of_state = most if dtype.itemsize >= 4 else torch.finfo(torch.float32).max
        if not (squares < _FAR * of_state and norm * reach < _FAR * most):  # NaN is risky too
            return True
    return False


def parameter_name(group: dict[str, Any], group_index: int, index: int) -> str:
    """Return what an error message calls a parameter: its place, and its name if it has one."""
    names = group.get("param_names")
    known_as = f" ({names[index]!r})" if names is not None else ""
    return f"parameter {index} of param group {group_index}{known_as}"


def usable(groups: list[dict[str, Any]]) -> tuple[list[list[Tensor]], float]:
    """Return the parameters of each group that have a gradient to use.

    Args:
        groups: param groups of an optimizer.

    Returns:
        For each group, its parameters whose gradient is neither None nor empty; and a bound on
        the norm of all gradients together, infinite where squares overflow. Groups with
        check_finite=False do not count in it.

    Raises:
        TypeError: a gradient is sparse or complex.
        FloatingPointError: a gradient holds NaN or an infinity.
    """
    chosen: list[list[Tensor]] = []
    for group_index, group in enumerate(groups):
        chosen.append([])
        for index, p in enumerate(group["params"]):
            gradient: Tensor | None = p.grad
            if gradient is None or gradient.numel() == 0:
                continue
            if gradient.layout != torch.strided:
                name = parameter_name(group, group_index, index)
                raise TypeError(
                    f"the gradient of {name} is sparse ({gradient.layout}); "
                    "use dense gradients, for example nn.Embedding(..., sparse=False)"
                )
            if gradient.is_complex():
                name = parameter_name(group, group_index, index)
                raise TypeError(
                    f"the gradient of {name} is complex ({gradient.dtype}); "
                    "optimize torch.view_as_real of the parameter instead"
                )
            chosen[-1].append(p)
    checked = [ps for g, ps in zip(groups, chosen, strict=True) if g.get("check_finite", True)]
    norm = _sum_of_norms([p.grad for ps in checked for p in ps if p.grad is not None])
    if not math.isfinite(norm):  # it may come from squares that overflow, so look closer
        _raise_if_not_finite(groups)
    return chosen, norm


def _sum_of_norms(gradients: list[Tensor]) -> float:
    """Return the sum of the norms of gradients, with one synchronisation per device."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    norms: dict[torch.device, Tensor] = {}
    for (device, dtype), tensors in by_kind.items():
        summed = torch.float32 if dtype.itemsize < 4 else None  # squares overflow in half precision
        total = torch.stack(torch._foreach_norm(tensors, 2, summed)).sum(dtype=torch.float64)
        norms[device] = norms[device] + total if device in norms else total
    return math.fsum(total.item() for total in norms.values())


def _raise_if_not_finite(groups: list[dict[str, Any]]) -> None:
    for group_index, group in enumerate(groups):
        for index, p in enumerate(group["params"]):
            bad = 0 if p.grad is None else int((~p.grad.isfinite()).sum())
            if bad:
                name = parameter_name(group, group_index, index)
                raise FloatingPointError(
                    f"the gradient of {name} has {bad} entries that are NaN or infinite, out of "
                    f"{p.grad.numel()}; nothing was changed. Zero the gradients and skip this "
                    "step, or find the cause with torch.autograd.set_detect_anomaly(True)"
                )
