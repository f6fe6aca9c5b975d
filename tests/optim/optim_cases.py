"""The optimizers as rows of a table, and small helpers that the tests of the package share."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mlmcgrad.optim import (
    SGD,
    Adagrad,
    AdaptiveOptimizer,
    AMSGrad,
    FullAdagrad,
    RMSProp,
    StochasticNewton,
)
from mlmcgrad.schedules import power

Factory: TypeAlias = Callable[..., AdaptiveOptimizer]


def _row(cls: type[Any], **standard: Any) -> Factory:
    def make(params: Any, **changes: Any) -> AdaptiveOptimizer:
        optimizer: AdaptiveOptimizer = cls(params, **{**standard, **changes})
        return optimizer

    return make


GAMMA = power(0.1, -0.5)

# Every optimizer with schedules wherever it accepts one; a new optimizer adds one row.
CASES: dict[str, Factory] = {
    "SGD": _row(SGD, lr=GAMMA),
    "SGD, weight decay": _row(SGD, lr=GAMMA, weight_decay=0.1),
    "Adagrad": _row(Adagrad, lr=GAMMA, eps=power(0.5, -0.1), clip=power(0.5, 0.2)),
    "AMSGrad": _row(AMSGrad, lr=GAMMA, betas=(0.9, 0.9), eps=1e-2, clip=power(0.7, 0.15)),
    "AMSGrad, weight decay": _row(AMSGrad, lr=GAMMA, betas=(0.9, 0.9), clip=2.0, weight_decay=0.1),
    "RMSProp": _row(RMSProp, lr=GAMMA, alpha=0.8, eps=1e-2, clip=power(0.5, 0.2)),
    "FullAdagrad": _row(FullAdagrad, lr=GAMMA, eps=0.1, clip=power(0.5, 0.2)),
    "StochasticNewton": _row(StochasticNewton, lr=GAMMA, lower=0.1, upper=2.0),
}

SHAPES: tuple[tuple[int, ...], ...] = ((2,), (1, 2), ())
WIDE: tuple[tuple[int, ...], ...] = ((3,), (2, 2), (), (1, 3, 2))


def parameters(
    shapes: tuple[tuple[int, ...], ...] = SHAPES, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Random parameters."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=rng, dtype=dtype).requires_grad_() for s in shapes]


def values(params: list[Tensor]) -> list[float]:
    """All coordinates, in order."""
    return [x for p in params for x in p.detach().reshape(-1).tolist()]


def fill_gradients(params: list[Tensor], n: int, scale: float = 1.0) -> None:
    """Gradients that are a function of the parameters and of the step number n."""
    rng = torch.Generator().manual_seed(1000 + n)
    for p in params:
        noise = torch.randn(p.shape, generator=rng, dtype=p.dtype)
        p.grad = scale * (0.3 * p.detach() + noise)


def recorded_noise(params: list[Tensor], steps: int) -> list[list[float]]:
    """What `fill_gradients` adds at steps 1 … steps."""
    zeros = [torch.zeros_like(p) for p in params]
    rows = []
    for n in range(1, steps + 1):
        fill_gradients(zeros, n)
        rows.append([x for p in zeros if p.grad is not None for x in p.grad.reshape(-1).tolist()])
    return rows


def run(optimizer: AdaptiveOptimizer, params: list[Tensor], first: int, last: int) -> None:
    """Steps first … last with `fill_gradients`, and curvature pairs where they are used."""
    for n in range(first, last + 1):
        fill_gradients(params, n)
        if isinstance(optimizer, StochasticNewton):
            loss = sum(((1.0 + i) * p.square()).sum() for i, p in enumerate(params))
            assert isinstance(loss, Tensor)
            optimizer.observe_loss(loss, torch.Generator().manual_seed(n))
        optimizer.step()


def snapshot(optimizer: AdaptiveOptimizer) -> bytes:
    """Everything that a failed step must leave alone: parameters and state, as bytes."""
    buffer = io.BytesIO()
    everything = [p.detach() for group in optimizer.param_groups for p in group["params"]]
    torch.save((everything, optimizer.state_dict()), buffer)
    return buffer.getvalue()


def saved_and_loaded(state: Any) -> Any:
    """A round trip through a file that may hold only tensors and numbers."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def close(values: list[float], expected: list[float], tolerance: float = 1e-12) -> bool:
    """Equality up to a tolerance, relative where numbers are large."""
    pairs = zip(values, expected, strict=True)
    return all(math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance) for x, y in pairs)
