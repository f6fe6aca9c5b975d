"""Optimizers whose matrix A_n is diagonal: every operation is elementwise.

The update of each optimizer is written once, over lists of tensors. With `foreach` the lists are
long, which is what accelerators want; without it they hold one tensor each. The numbers are the
same. On a CPU the lists are cut to about the size of a cache: then one list goes through all
operations of the update before the next list is touched, and temporaries stay that small.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mlmcgrad.optim._base import AdaptiveOptimizer

CACHE_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Batch:
    """Tensors that are updated together: one device, one dtype, one count."""

    params: list[Tensor]
    grads: list[Tensor]
    states: list[dict[str, Any]]
    count: int
    """How many gradients each of these parameters has had, this one included."""

    def state(self, name: str) -> list[Tensor]:
        """One state tensor of each parameter."""
        return [state[name] for state in self.states]


class ElementwiseOptimizer(AdaptiveOptimizer):
    """Base of the diagonal optimizers; a subclass names its state and writes its update."""

    def __init__(
        self, params: ParamsT, defaults: dict[str, Any], *, foreach: bool | None, maximize: bool
    ) -> None:
        super().__init__(params, {**defaults, "foreach": foreach, "maximize": maximize})

    @property
    @abstractmethod
    def _state_names(self) -> tuple[str, ...]:
        """State tensors of a parameter; each has its shape and starts at zero."""

    @abstractmethod
    def _update(self, group: dict[str, Any], batch: Batch, rate: float) -> None:
        """Update the state tensors and parameters of one batch in place."""

    @final
    def _check_group(self, group: dict[str, Any], where: str) -> None:
        """Any tensors will do."""

    @final
    def _apply(self, group: dict[str, Any], params: list[Tensor], rate: float) -> None:
        for p in params:
            state = self.state[p]
            if not state:
                state["count"] = 0
                for name in self._state_names:
                    state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["count"] += 1
        for batch in self._batches(params, group["foreach"]):
            self._update(group, batch, rate)

    def _batches(self, params: list[Tensor], foreach: bool | None) -> Iterator[Batch]:
        """Cut parameters into lists that a foreach operation can take."""
        # Tensor subclasses (DTensor and the like) need not know the foreach operations.
        plain = all(type(p) in (Tensor, torch.nn.Parameter) for p in params)
        together = plain if foreach is None else foreach
        limit = CACHE_ELEMENTS if together else 0
        lists: dict[tuple[torch.device, torch.dtype, int], list[Tensor]] = {}
        elements: dict[tuple[torch.device, torch.dtype, int], int] = {}
        for p in params:
            key = (p.device, p.dtype, self.state[p]["count"])
            members = lists.setdefault(key, [])
            filled = elements.get(key, 0) + p.numel()
            if members and filled > limit and (p.device.type == "cpu" or not together):
                yield self._batch(members)
                lists[key] = members = []
                filled = p.numel()
            members.append(p)
            elements[key] = filled
        for members in lists.values():
            yield self._batch(members)

    def _batch(self, params: list[Tensor]) -> Batch:
        states = [self.state[p] for p in params]
        grads = [p.grad for p in params if p.grad is not None]
        return Batch(params, grads, states, states[0]["count"])


__all__ = ["Batch", "ElementwiseOptimizer"]
