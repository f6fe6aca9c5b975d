"""What the optimizers accept: ranges of hyperparameters, and gradients that may be used.

Every check here runs before anything is changed, so after an error the parameters, the state and
the iteration number are those of before the call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mlmcgrad.schedules import as_schedule


@dataclass(frozen=True)
class Range:
    """An interval of the real line, with the words that describe it in an error."""

    text: str
    low: float
    high: float
    low_included: bool
    high_included: bool

    def check(self, name: str, value: Any, where: str = "") -> float:
        """Return the value as a float if it lies in the range.

        Args:
            name: the argument, as the user wrote it.
            value: the number to check.
            where: where it came from, for example " at step n=3 of param group 0".
        """
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            as_schedule(value, name)  # raises the error for something that is not a number
        number = float(value)
        above = number > self.low or (self.low_included and number == self.low)
        below = number < self.high or (self.high_included and number == self.high)
        if not (above and below):
            raise ValueError(f"{name} must be {self.text}, got {value!r}{where}")
        return number


Ranges: TypeAlias = Mapping[str, Range]

NON_NEGATIVE = Range("a finite number ≥ 0", 0.0, math.inf, True, False)
POSITIVE = Range("a finite number > 0", 0.0, math.inf, False, False)
POSITIVE_OR_INFINITE = Range("a number > 0 (math.inf is allowed)", 0.0, math.inf, False, True)
DECAY = Range("in [0, 1)", 0.0, 1.0, True, False)


def parameter_name(group: dict[str, Any], group_index: int, index: int) -> str:
    """How an error calls a parameter: its place, and its name where names were given."""
    names = group.get("param_names")
    known_as = f" ({names[index]!r})" if names is not None else ""
    return f"parameter {index} of param group {group_index}{known_as}"


def usable(groups: list[dict[str, Any]]) -> list[list[Tensor]]:
    """The parameters of each group that have a gradient to use.

    Args:
        groups: param groups of an optimizer.

    Returns:
        Per group, its parameters whose gradient is neither None nor empty.

    Raises:
        TypeError: a gradient is sparse or complex.
        ValueError: a gradient holds NaN or an infinity.
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
    if not _norms_are_finite([p.grad for ps in chosen for p in ps if p.grad is not None]):
        _raise_if_not_finite(groups)
    return chosen


def _norms_are_finite(gradients: list[Tensor]) -> bool:
    """A quick test of all gradients with one pass over them and one synchronisation a device.

    True is certain. False may be an overflow of the squares, so it has to be confirmed.
    """
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    norms: dict[torch.device, Tensor] = {}
    for (device, _), tensors in by_kind.items():
        total = torch.stack(torch._foreach_norm(tensors)).sum(dtype=torch.float64)
        norms[device] = norms[device] + total if device in norms else total
    return all(math.isfinite(total.item()) for total in norms.values())


def _raise_if_not_finite(groups: list[dict[str, Any]]) -> None:
    for group_index, index, p in _enumerate(groups):
        gradient = p.grad
        if gradient is None or gradient.numel() == 0 or bool(gradient.isfinite().all()):
            continue
        bad = int((~gradient.isfinite()).sum())
        name = parameter_name(groups[group_index], group_index, index)
        raise ValueError(
            f"the gradient of {name} has {bad} entries that are NaN or infinite, out of "
            f"{gradient.numel()}; nothing was changed. Zero the gradients and skip this step, or "
            "find the cause with torch.autograd.set_detect_anomaly(True)"
        )


def _enumerate(groups: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int, Tensor]]:
    for group_index, group in enumerate(groups):
        for index, p in enumerate(group["params"]):
            yield group_index, index, p


__all__ = [
    "DECAY",
    "NON_NEGATIVE",
    "POSITIVE",
    "POSITIVE_OR_INFINITE",
    "Range",
    "Ranges",
    "parameter_name",
    "usable",
]
