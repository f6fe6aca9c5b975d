"""What the optimizers accept: ranges of hyperparameters, and gradients that can be used.

Every check runs before anything is changed, so an error leaves the parameters, the state and the
iteration number as they were before the call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mlmcgrad.schedules import as_schedule


@dataclass(frozen=True)
class Range:
    """An interval of the real line, and how an error message describes it."""

    text: str
    low: float
    high: float
    _: KW_ONLY
    low_included: bool = False
    high_included: bool = False

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
        above = number > self.low or (self.low_included and number == self.low)
        below = number < self.high or (self.high_included and number == self.high)
        if not (above and below):
            raise ValueError(f"{name} must be {self.text}, got {value!r}{where}")
        return number


Ranges: TypeAlias = Mapping[str, Range]

NON_NEGATIVE = Range("a finite number ≥ 0", 0.0, math.inf, low_included=True)
POSITIVE = Range("a finite number > 0", 0.0, math.inf)
POSITIVE_OR_INFINITE = Range("a number > 0 (or math.inf)", 0.0, math.inf, high_included=True)
FRACTION = Range("in [0, 1)", 0.0, 1.0, low_included=True)


def parameter_name(group: dict[str, Any], group_index: int, index: int) -> str:
    """What an error message calls a parameter: its place, and its name if it has one."""
    names = group.get("param_names")
    known_as = f" ({names[index]!r})" if names is not None else ""
    return f"parameter {index} of param group {group_index}{known_as}"


def usable(groups: list[dict[str, Any]]) -> tuple[list[list[Tensor]], float]:
    """The parameters of each group that have a gradient to use.

    Args:
        groups: param groups of an optimizer.

    Returns:
        For each group, its parameters whose gradient is neither None nor empty; and a bound on
        the norm of all gradients together, infinite where squares overflow.

    Raises:
        TypeError: a gradient is sparse or complex.
        FloatingPointError: a gradient holds NaN or an infinity.
    """
    chosen: list[list[Tensor]] = []
    for group_index, group in enumerate(groups):
        with_gradient: list[Tensor] = []
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
            with_gradient.append(p)
        chosen.append(with_gradient)
    norm = _sum_of_norms([p.grad for ps in chosen for p in ps if p.grad is not None])
    if not math.isfinite(norm):  # it may come from squares that overflow, so look closer
        _raise_if_not_finite(groups)
    return chosen, norm


def _sum_of_norms(gradients: list[Tensor]) -> float:
    """The norms of all gradients: one pass over them and one synchronisation a device."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    norms: dict[torch.device, Tensor] = {}
    for (device, _), tensors in by_kind.items():
        total = torch.stack(torch._foreach_norm(tensors)).sum(dtype=torch.float64)
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
