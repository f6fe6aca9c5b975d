"""Optimizers whose matrix A_n is dense, over the concatenation of all parameters of a group.

A parameter without a gradient counts as a gradient of zero in the concatenation, and is not moved.
The state of a group belongs to its first parameter.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._base import AdaptiveOptimizer


class MatrixOptimizer(AdaptiveOptimizer):
    """Base of the dense optimizers; a subclass turns a gradient vector into a direction."""

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        max_dimension: int,
        foreach: bool | None,
        maximize: bool,
    ) -> None:
        if isinstance(max_dimension, bool) or not isinstance(max_dimension, int):
            raise TypeError(f"max_dimension must be an integer, got {max_dimension!r}")
        if max_dimension < 1:
            raise ValueError(f"max_dimension must be at least 1, got {max_dimension!r}")
        shared = {"max_dimension": max_dimension, "foreach": foreach, "maximize": maximize}
        super().__init__(params, {**defaults, **shared})

    @abstractmethod
    def _initial_state(self, group: dict[str, Any], like: Tensor, d: int) -> dict[str, Any]:
        """State of a group of dimension d, before its first step."""

    @abstractmethod
    def _direction(self, group: dict[str, Any], state: dict[str, Any], gradient: Tensor) -> Tensor:
        """A_{n−1} Ĥ_n, shape (d,), from Ĥ_n of the same shape; brings the state up to date."""

    @final
    def _check_group(self, group: dict[str, Any], where: str) -> None:
        params: list[Tensor] = group["params"]
        d, limit = dimension(group), group["max_dimension"]
        if d > limit:
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
    def _group_state(self, group: dict[str, Any]) -> dict[str, Any]:
        """The state of a group, made when first asked for."""
        first: Tensor = group["params"][0]
        state: dict[str, Any] = self.state[first]
        if not state:
            state.update(self._initial_state(group, first, dimension(group)))
        return state

    @final
    def _apply(self, group: dict[str, Any], params: list[Tensor], rate: float) -> None:
        everything: list[Tensor] = group["params"]
        gradient = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in everything])
        direction = self._direction(group, self._group_state(group), gradient)
        pieces = dict(
            zip(everything, torch.split(direction, [p.numel() for p in everything]), strict=True)
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


__all__ = ["MatrixOptimizer", "dimension", "flatten"]
