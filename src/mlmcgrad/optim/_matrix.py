"""Optimizers whose matrix A_n is dense, over the concatenation of all parameters of a group.

A parameter without a gradient counts as a gradient of zero in the concatenation, and is not moved.
The state of a group belongs to its first parameter.
"""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from mlmcgrad.optim._base import AdaptiveOptimizer


class MatrixOptimizer(AdaptiveOptimizer):
    """Base class of the dense optimizers; a subclass turns a gradient vector into a direction."""

    _counts: ClassVar[tuple[str, ...]]
    """Numbers in the state of a group."""

    _matrices: ClassVar[tuple[str, ...]]
    """Matrices in it, (d, d)."""

    @abstractmethod
    def _initial_state(self, group: dict[str, Any], like: Tensor, d: int) -> dict[str, Any]:
        """State of a group of dimension d, before its first step."""

    @abstractmethod
    def _direction(self, group: dict[str, Any], state: dict[str, Any], gradient: Tensor) -> Tensor:
        """A_{n−1} Ĥ_n, shape (d,), from Ĥ_n of the same shape; updates the state."""

    @final
    def _check_group(self, group: dict[str, Any], where: str) -> None:
        params: list[Tensor] = group["params"]
        d, limit = dimension(group), group["max_dimension"]
        if isinstance(limit, bool) or not isinstance(limit, Integral) or int(limit) < 1:
            raise ValueError(f"max_dimension must be an integer ≥ 1, got {limit!r}{where}")
        if d > int(limit):
            raise ValueError(
                f"{type(self).__name__} keeps a dense matrix over all parameters of a group: their "
                f"dimension{where} is {d}, beyond max_dimension={limit}; split the parameters into "
                "several param groups, use a diagonal optimizer such as Adagrad, or raise "
                "max_dimension"
            )
        kinds = {(p.dtype, str(p.device)) for p in params}
        if len(kinds) > 1 or params[0].dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"the parameters{where} must share one device and be all float32 or all float64, "
                f"got {sorted(map(str, kinds))}; put parameters of different kinds into different "
                "param groups"
            )

    @final
    def _check_values(self, values: dict[str, Any], dtypes: set[torch.dtype], where: str) -> None:
        """Its types are float32 and float64, and eigenvalues are kept from 0 by themselves."""

    @final
    def _state_shapes(self, group: dict[str, Any], p: Tensor) -> dict[str, tuple[int, ...] | None]:
        d = dimension(group)
        matrices = dict.fromkeys(self._matrices, (d, d))
        return {**dict.fromkeys(self._counts), **matrices} if p is group["params"][0] else {}

    @final
    def _group_state(self, group: dict[str, Any]) -> dict[str, Any]:
        """The state of a group, created on first use."""
        first: Tensor = group["params"][0]
        state: dict[str, Any] = self.state[first]
        if not state:
            state.update(self._initial_state(group, first, dimension(group)))
        return state

    @final
    def _apply(self, group: dict[str, Any], params: list[Tensor], rate: float) -> None:
        members: list[Tensor] = group["params"]
        gradient = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in members])
        direction = self._direction(group, self._group_state(group), gradient)
        pieces = dict(
            zip(members, torch.split(direction, [p.numel() for p in members]), strict=True)
        )
        moves = [pieces[p].view_as(p) for p in params]
        if group["foreach"] is False:
            for p, move in zip(params, moves, strict=True):
                p.add_(move, alpha=rate)
        else:
            torch._foreach_add_(params, moves, alpha=rate)


def dimension(group: dict[str, Any]) -> int:
    """Number of coordinates in a param group."""
    return sum(p.numel() for p in group["params"])


def flatten(tensors: list[Tensor]) -> Tensor:
    """Concatenate tensors into one vector, shape (d,)."""
    return torch.cat([t.reshape(-1) for t in tensors])
