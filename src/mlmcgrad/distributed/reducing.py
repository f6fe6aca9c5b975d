"""The mean of the gradients of all processes: one sum of flat buffers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mlmcgrad.distributed.collectives import add_up
from mlmcgrad.ranges import whole
from mlmcgrad.wrapped import check_plain


def reduce(parameters: Iterable[Tensor], *, chains: int = 1) -> None:
    """Replace `.grad` of the parameters by its mean over the processes, weighted by their chains.

    For processes that each call `MarkovGradient.backward` on chains of their own; `Sharded` does
    this by itself. Every process names the same parameters in the same order. A parameter without
    a gradient in some processes counts as 0 there; without any, it stays without.

    Args:
        parameters: tensors whose `.grad` is a mean over the chains of this process.
        chains: how many chains this process had; the same everywhere if it is left out.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> weight.grad = torch.tensor([1.0, 2.0])
        >>> reduce([weight], chains=50)  # one process: nothing changes
        >>> weight.grad.tolist()
        [1.0, 2.0]
    """
    whole(chains, "chains")
    if isinstance(parameters, nn.Module):
        name = type(parameters).__name__
        raise TypeError(f"parameters must be tensors, got {name}; pass {name}.parameters()")
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    check_plain(tensors)
    if not tensors:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad * chains for p in tensors]
    counts = torch.tensor([chains, *(int(p.grad is not None) for p in tensors)])
    add_up([*gradients, counts])
    total, *present = counts.tolist()
    for parameter, gradient, there in zip(tensors, gradients, present, strict=True):
        if there:
            parameter.grad = gradient / total
