"""Modules that are wrapped for several processes: refused where their hooks would not be called.

`MarkovGradient.backward` differentiates with `torch.autograd.grad`, which calls no hook that waits
for `.grad`. DistributedDataParallel and FSDP average gradients in such hooks: with them, processes
would drift apart without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

_REMEDY = (
    "call the bare module (its `.module`) in loss and kernel, and add up the gradients of the "
    "processes by mg.distributed.reduce(parameters) or mg.distributed.Sharded; or use `surrogate`, "
    "whose backward pass calls the hooks"
)


@contextmanager
def refused() -> Iterator[None]:
    """Refuse wrapped modules that are called inside, where there are other processes.

    Raises:
        TypeError: the message names the wrapper and what to do.
    """
    if not (dist.is_available() and dist.is_initialized()):
        yield
        return
    wrappers = (*_found("torch.nn.parallel", "DistributedDataParallel"), *_sharding())

    def check(module: nn.Module, _: Any) -> None:
        if isinstance(module, wrappers):
            name = next(kind for kind in wrappers if isinstance(module, kind)).__name__
            raise TypeError(
                f"loss or kernel calls a module in {name}, whose gradients would not be averaged "
                f"over the processes; {_REMEDY}"
            )

    handle = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


def check_plain(parameters: Iterable[Tensor]) -> None:
    """Refuse parameters of which a process has only a part."""
    kinds = (
        *_found("torch.distributed.tensor", "DTensor"),
        *_found("torch.distributed.fsdp", "FlatParameter"),
    )
    for number, parameter in enumerate(parameters):
        if isinstance(parameter, kinds):
            raise TypeError(
                f"parameters must be whole in every process, number {number} is a part of one "
                f"({type(parameter).__name__}), as FSDP makes them; {_REMEDY}"
            )


def _sharding() -> tuple[type, ...]:
    names = ("FullyShardedDataParallel", "FSDPModule")
    return tuple(kind for name in names for kind in _found("torch.distributed.fsdp", name))


def _found(module: str, name: str) -> tuple[type, ...]:
    """A class of torch; who has not imported its module cannot have used it."""
    kind = getattr(sys.modules.get(module), name, None)
    return (kind,) if isinstance(kind, type) else ()
