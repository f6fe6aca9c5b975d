"""The weight w_n = γ_{n+1} λ_{n+1} of an iterate θ_n, taken from the optimizer that made it."""

from __future__ import annotations

import torch
from torch.optim.optimizer import Optimizer

from mlmcgrad.optim._base import AdaptiveOptimizer
from mlmcgrad.optim._checks import NON_NEGATIVE
from mlmcgrad.schedules import Schedule


def iterate_weight(optimizer: Optimizer, n: int, weight: float | Schedule | None) -> float:
    """w_n, the smallest of all param groups.

    Args:
        optimizer: about to take step n + 1.
        n: index of the iterate, n ≥ 0.
        weight: λ, instead of the optimizer's own.
    """
    products = []
    for g, group in enumerate(optimizer.param_groups):
        lr, factor = float(group["lr"]), 1.0
        if isinstance(optimizer, AdaptiveOptimizer):
            lr = optimizer.lr_at(n + 1, g)
            factor = optimizer.preconditioner_bounds(n + 1, g)[0]
        if weight is not None:
            value = weight(n + 1) if callable(weight) else weight
            factor = NON_NEGATIVE.check("weight", value, f" at step n={n + 1}")
        products.append(NON_NEGATIVE.check("lr", lr, f" in param group {g}") * factor)
    return min(products)


def check_bounds(optimizer: Optimizer) -> None:
    """Raise if the optimizer's own bounds give no weights."""
    if isinstance(optimizer, AdaptiveOptimizer):
        # Step 1 does not count: AMSGrad's lower bound is 0 there by definition.
        if optimizer.preconditioner_bounds(2)[0] > 0.0:
            return
        raise ValueError(
            f"{type(optimizer).__name__} without clipping has the preconditioner bound 0, so "
            "theory gives no weights; make its clip finite, or pass weight=1.0"
        )
    if not isinstance(optimizer, torch.optim.SGD):
        raise TypeError(
            f"no preconditioner bound is known for {type(optimizer).__name__}; pass weight=, "
            "a number or a schedule λ_n"
        )
