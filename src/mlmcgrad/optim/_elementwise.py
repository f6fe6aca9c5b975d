"""Optimizers whose matrix A_n is diagonal: every operation is elementwise.

The update of each optimizer is written once, over lists of tensors. With `foreach` the lists are
long, which suits accelerators; without it they hold one tensor each. The numbers are the same. On a
CPU the lists are cut to about the size of a cache: one list then goes through all operations of the
update before the next list is touched, and temporaries stay that small.

`weight_decay` λ is an L2 penalty, as in torch.optim.SGD and Adam (not decoupled as in AdamW): the
gradient is Ĥ_n + λ θ_{n−1} wherever Ĥ_n stands in a formula. It estimates ∇(V + ½λ‖θ‖²) with the
bias of Ĥ_n, so the theorems apply to the penalised objective, with a G that also bounds λ‖θ‖.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from mlmcgrad.optim._base import AdaptiveOptimizer
from mlmcgrad.optim._checks import NON_NEGATIVE

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
    """Base class of the diagonal optimizers; a subclass names its state and writes its update."""

    @property
    @abstractmethod
    def _state_names(self) -> tuple[str, ...]:
        """State tensors of a parameter; each has its shape and starts at zero."""

    @abstractmethod
    def _under_root(self, values: dict[str, Any]) -> tuple[str, float]:
        """The hyperparameter that keeps the root from 0, and what it adds under the root."""

    @abstractmethod
    def _update(self, group: dict[str, Any], batch: Batch, rate: float) -> None:
        """Update the state tensors and parameters of one batch in place."""

    @final
    def _check_group(self, group: dict[str, Any], where: str) -> None:
        decay = NON_NEGATIVE.check("weight_decay", group["weight_decay"], where)
        group["weight_decay"] = decay

    @final
    def _check_values(self, values: dict[str, Any], dtypes: set[torch.dtype], where: str) -> None:
        name, added = self._under_root(values)
        for dtype in dtypes:
            least = torch.finfo(dtype).tiny
            if added < least:
                raise ValueError(
                    f"{name}={values[name]!r} adds {added:.3g} under the root, which is next to 0 "
                    f"in {dtype}, so that a step could divide by 0{where}; change it so that it "
                    f"adds {least:.3g} at least, or keep the parameters in float32"
                )

    @final
    def _state_shapes(self, group: dict[str, Any], p: Tensor) -> dict[str, tuple[int, ...] | None]:
        return {"count": None, **dict.fromkeys(self._state_names, tuple(p.shape))}

    @final
    def _apply(self, group: dict[str, Any], params: list[Tensor], rate: float) -> None:
        for p in params:
            state = self.state[p]
            if not state:
                state["count"] = 0
                for name in self._state_names:
                    state[name] = torch.zeros_like(p)
            state["count"] += 1
        # Ascent maximises V − ½λ‖θ‖², so there the penalty enters the gradient with a minus.
        decay = -group["weight_decay"] if group["maximize"] else group["weight_decay"]
        for members in self._lists(params, group["foreach"]):
            states = [self.state[p] for p in members]
            grads = [p.grad for p in members if p.grad is not None]
            if decay:
                grads = list(torch._foreach_add(grads, members, alpha=decay))
            self._update(group, Batch(members, grads, states, states[0]["count"]), rate)

    def _lists(self, params: list[Tensor], foreach: bool | None) -> Iterator[list[Tensor]]:
        """Cut parameters into lists that a foreach operation can work on."""
        # Tensor subclasses (DTensor and the like) need not know the foreach operations.
        plain = all(type(p) in (Tensor, torch.nn.Parameter) for p in params)
        together = plain if foreach is None else foreach
        limit = CACHE_ELEMENTS if together else 0
        lists: dict[tuple[torch.device, torch.dtype, int], list[Tensor]] = {}
        sizes: dict[tuple[torch.device, torch.dtype, int], int] = {}
        for p in params:
            key = (p.device, p.dtype, self.state[p]["count"])
            members = lists.setdefault(key, [])
            size = sizes.get(key, 0) + p.numel()
            if members and size > limit and (p.device.type == "cpu" or not together):
                yield members
                lists[key] = members = []
                size = p.numel()
            members.append(p)
            sizes[key] = size
        yield from lists.values()


def clipped(grads: list[Tensor], clip: float) -> list[Tensor]:
    """The gradients with every entry brought into [−M, M]; the same list if M is infinite."""
    if math.isinf(clip):
        return grads
    bounded = list(torch._foreach_clamp_max(grads, clip))
    torch._foreach_clamp_min_(bounded, -clip)
    return bounded
