"""Optimizers × problems with known minimisers.

Deterministic rows ask for the minimiser to three digits. In the noisy rows a gradient has standard
deviation 1 per coordinate; the last iterate then has about √(γ_N/2) ≤ 0.073 (stochastic
approximation with A ≈ 1), so the null hypothesis "it fluctuates about the minimiser" is rejected at
0.4, beyond 5.4 standard deviations, with a false-alarm rate below 1e-6 in 4 coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
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

SCALES = torch.logspace(-1, 1, 4, dtype=torch.float64)  # condition number 100
ROTATION = torch.linalg.qr(
    torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
).Q


def quadratic(theta: Tensor, rng: torch.Generator) -> Tensor:
    """Ill conditioned and not aligned with the axes; minimiser (1, 1, 1, 1)."""
    return 0.5 * (SCALES * torch.mv(ROTATION, theta - 1.0).square()).sum()


def rosenbrock(theta: Tensor, rng: torch.Generator) -> Tensor:
    """Not convex, a curved valley; minimiser (1, 1, 1, 1)."""
    x, y = theta[:-1], theta[1:]
    return ((1.0 - x).square() + 10.0 * (y - x.square()).square()).sum()


def noisy(theta: Tensor, rng: torch.Generator) -> Tensor:
    """½ ‖θ − 1 − ξ‖² with ξ ~ N(0, I); the expectation has the minimiser (1, 1, 1, 1)."""
    noise = torch.randn(4, generator=rng, dtype=torch.float64)
    return 0.5 * (theta - 1.0 - noise).square().sum()


Problem = Callable[[Tensor, torch.Generator], Tensor]

TABLE: list[tuple[type[Any], dict[str, Any], Problem, int, float]] = [
    (SGD, {"lr": 0.1}, quadratic, 2000, 1e-3),
    (SGD, {"lr": 0.01}, rosenbrock, 10000, 1e-3),
    (SGD, {"lr": power(1.0, -0.6)}, noisy, 2000, 0.4),
    (Adagrad, {"lr": power(1.0, -0.5)}, quadratic, 2000, 1e-3),
    (Adagrad, {"lr": power(1.0, -0.5)}, rosenbrock, 2000, 1e-3),
    (Adagrad, {"lr": power(1.0, -0.6)}, noisy, 2000, 0.4),
    (AMSGrad, {"lr": 0.1}, quadratic, 2000, 1e-3),
    (AMSGrad, {"lr": 0.1}, rosenbrock, 3000, 1e-3),
    (AMSGrad, {"lr": power(0.3, -0.6)}, noisy, 2000, 0.4),
    (RMSProp, {"lr": power(0.2, -0.6), "alpha": 0.9, "eps": 0.1}, quadratic, 3000, 1e-3),
    (RMSProp, {"lr": power(0.2, -0.6), "alpha": 0.9, "eps": 0.1}, rosenbrock, 3000, 1e-3),
    (RMSProp, {"lr": power(1.0, -0.8)}, noisy, 2000, 0.4),
    (FullAdagrad, {"lr": power(2.0, -0.5)}, quadratic, 1500, 1e-3),
    (FullAdagrad, {"lr": power(2.0, -0.5)}, rosenbrock, 1500, 1e-3),
    (FullAdagrad, {"lr": power(1.0, -0.6)}, noisy, 2000, 0.4),
    (StochasticNewton, {"lr": 1.0}, quadratic, 100, 1e-3),
    (
        StochasticNewton,
        {"lr": 0.2, "initial_curvature": 100.0, "upper": 1.0},
        rosenbrock,
        500,
        1e-3,
    ),
    (StochasticNewton, {"lr": power(1.0, -1.0)}, noisy, 2000, 0.4),
]


def distance(cls: type[Any], arguments: dict[str, Any], problem: Problem, steps: int) -> float:
    """How far from the minimiser the last iterate is, in its worst coordinate."""
    rng = torch.Generator().manual_seed(1)
    theta = torch.tensor([-0.5, 2.0, 0.0, 1.5], dtype=torch.float64, requires_grad=True)
    optimizer: AdaptiveOptimizer = cls([theta], **arguments)
    for _ in range(steps):
        loss = problem(theta, rng)
        if isinstance(optimizer, StochasticNewton):
            optimizer.observe_loss(loss, rng)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return (theta.detach() - 1.0).abs().max().item()


@pytest.mark.parametrize(
    ("cls", "arguments", "problem", "steps", "tolerance"),
    TABLE,
    ids=[f"{cls.__name__}-{problem.__name__}" for cls, _, problem, _, _ in TABLE],
)
def test_finds_the_minimiser(
    cls: type[Any], arguments: dict[str, Any], problem: Problem, steps: int, tolerance: float
) -> None:
    assert distance(cls, arguments, problem, steps) < tolerance


@pytest.mark.parametrize(("cls", "arguments"), [row[:2] for row in TABLE if row[2] is noisy])
def test_planted_bug_a_biased_gradient_is_noticed(
    cls: type[Any], arguments: dict[str, Any]
) -> None:
    def biased(theta: Tensor, rng: torch.Generator) -> Tensor:
        return noisy(theta, rng) - theta.sum()  # the gradient is off by −1 in every coordinate

    assert distance(cls, arguments, biased, 2000) > 0.4
