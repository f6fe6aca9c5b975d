"""What protects an optimizer: steps that overflow are taken back, foreign states are refused.

A square of 1e20 is infinite in float32. An infinite entry of the state would keep its coordinate
from ever moving again, or make NaN of the parameters; so a step is tried on its own risk only where
its numbers are far from overflowing, and otherwise looked at, and taken back if need be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

# Part of the largest number of a type up to which a bound on the numbers of a step may come.
_FAR = 1e-3


def risky(dtypes: Iterable[torch.dtype], norm: float, n: int, lr: float) -> bool:
    """Whether step n could overflow.

    Args:
        dtypes: of the parameters that it moves.
        norm: of all gradients together.
        n: step number; sums of squares are at most n times the largest, unless a step was risky.
        lr: the largest step size.
    """
    for dtype in dtypes:
        kind = torch.finfo(dtype)
        # What is added under a root is at least `tiny`, so no eigenvalue of A exceeds tiny^{-1/2}.
        largest = max(norm * norm * n, norm * lr * kind.tiny**-0.5)
        if not largest < _FAR * kind.max:  # NaN is risky too
            return True
    return False


class Snapshot:
    """Parameters, state and hyperparameters of an optimizer, to be put back."""

    def __init__(self, groups: list[dict[str, Any]], state: Mapping[Tensor, Any]) -> None:
        self._groups, self._state = groups, state
        self._values = [dict(group) for group in groups]
        self._params = [(p, p.detach().clone()) for g in groups for p in g["params"]]
        self._states = {p: _copied(state[p]) for p, _ in self._params if p in state}

    def is_finite(self) -> bool:
        """Whether the parameters and the state are finite now."""
        states = [t for p, _ in self._params for t in self._state.get(p, {}).values()]
        tensors = [p for p, _ in self._params] + [t for t in states if isinstance(t, Tensor)]
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def put_back(self) -> None:
        """Make everything as it was."""
        for group, values in zip(self._groups, self._values, strict=True):
            group.update(values)
        for p, before in self._params:
            p.copy_(before)
            self._state[p].clear()
            self._state[p].update(self._states.get(p, {}))


def overflow(norm: float, n: int) -> FloatingPointError:
    """What to raise when a step was taken back."""
    return FloatingPointError(
        f"step {n} would overflow the parameters or the state: the gradient has the norm "
        f"{norm:.3g}; nothing was changed. Bound the gradient (torch.nn.utils.clip_grad_norm_), "
        "lower lr, or use float64"
    )


def check_state(
    name: str, groups: list[dict[str, Any]], saved: dict[str, Any], required: Iterable[str]
) -> None:
    """Refuse param groups of a state_dict that lack hyperparameters of this optimizer."""
    if not isinstance(saved, dict) or not {"state", "param_groups"} <= set(saved):
        raise ValueError("state_dict must be what state_dict() of an optimizer returns")
    for index, group in enumerate(saved["param_groups"][: len(groups)]):
        missing = [key for key in required if key not in group]
        if missing:
            raise _foreign(name, f"its param group {index} has no {missing[0]!r}")


def check_parameter_state(
    name: str, saved: dict[str, Any], expected: dict[str, tuple[int, ...] | None], where: str
) -> None:
    """Refuse a state of one parameter with other entries, or with tensors of other shapes.

    Args:
        name: of the optimizer.
        saved: its entries; none before its first gradient.
        expected: shapes of the entries, None for a number.
        where: which parameter it is.
    """
    if saved and set(saved) != set(expected):
        raise _foreign(name, f"the state of {where} has {sorted(saved)}, not {sorted(expected)}")
    for key, value in saved.items():
        shape = tuple(value.shape) if isinstance(value, Tensor) else None
        if shape != expected[key]:
            raise _foreign(name, f"{key!r} of {where} has the shape {shape}, not {expected[key]}")


def _foreign(name: str, reason: str) -> ValueError:
    return ValueError(
        f"state_dict is not one of this {name}: {reason}; load the state of an optimizer of the "
        "same class that was made for the same parameters"
    )


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}
