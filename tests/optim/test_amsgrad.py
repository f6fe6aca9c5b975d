from __future__ import annotations

import math

import pytest
import torch

from mlmcgrad.optim import AMSGrad
from mlmcgrad.schedules import Schedule, power
from tests.optim.optim_cases import (
    CASES,
    WIDE,
    close,
    fill_gradients,
    parameters,
    recorded_noise,
    run,
    values,
)
from tests.optim.optim_reference import amsgrad


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(
    ("lr", "rho1", "rho2", "clip"),
    [
        (power(0.05, -0.5), 0.9, 0.999, power(0.7, 0.15)),
        (power(0.05, -0.5), 0.9, 0.9, lambda n: math.inf),
        (lambda n: 0.01, 0.0, 0.0, power(1.5, 0.0)),
    ],
)
def test_equals_the_scalar_reference(
    foreach: bool, lr: Schedule, rho1: float, rho2: float, clip: Schedule
) -> None:
    params = parameters(WIDE)
    noise = recorded_noise(params, 200)
    expected = amsgrad(
        values(params),
        lambda theta, n: [0.3 * t + x for t, x in zip(theta, noise[n], strict=True)],
        200,
        lr,
        rho1,
        rho2,
        1e-4,
        lambda n: clip(n) ** 2,  # the paper's ε_n
    )
    optimizer = AMSGrad(params, lr, betas=(rho1, rho2), eps=1e-2, clip=clip, foreach=foreach)
    run(optimizer, params, 1, 200)
    assert close(values(params), expected)


def test_equals_torch_when_steps_undo_the_bias_correction() -> None:
    # torch divides m by 1−β1^n and √Ŵ by √(1−β2^n), with eps outside the root: the same steps come
    # from γ_n = lr √(1−ρ2^n) / (1−ρ1^n), δ → 0 and no clipping.
    ours, reference = parameters(WIDE), parameters(WIDE)

    def gamma(n: int) -> float:
        return 0.01 * math.sqrt(1 - 0.99**n) / (1 - 0.9**n)

    first = AMSGrad(ours, lr=gamma, betas=(0.9, 0.99), eps=1e-15)
    second = torch.optim.Adam(reference, lr=0.01, betas=(0.9, 0.99), eps=0.0, amsgrad=True)
    for n in range(1, 201):
        fill_gradients(ours, n)
        fill_gradients(reference, n)
        first.step()
        second.step()
    assert close(values(ours), values(reference))


def test_the_first_step_is_not_corrected_for_bias() -> None:
    theta = torch.zeros(1, dtype=torch.float64)
    theta.grad = torch.ones_like(theta)
    AMSGrad([theta], lr=1.0, eps=1e-15).step()
    assert math.isclose(-theta.item(), 0.1 / math.sqrt(0.001), rel_tol=1e-12)  # 3.16


def test_bounds_are_those_of_the_paper() -> None:
    clip = power(0.7, 0.15)
    optimizer = AMSGrad(parameters(), 0.1, betas=(0.9, 0.9), eps=0.5, clip=clip)
    assert optimizer.preconditioner_bounds(1) == (0.0, 2.0)  # ε̲_0 = 0
    for n in (2, 5, 40):
        expected = (0.25 + clip(n - 1) ** 2 * (1 - 0.9 ** (n - 1))) ** -0.5
        lower, upper = optimizer.preconditioner_bounds(n)
        assert math.isclose(lower, expected, rel_tol=1e-15)
        assert upper == 2.0


@pytest.mark.parametrize("clip", [power(0.7, 0.15), power(0.7, -0.15)])
def test_bounds_hold_for_the_matrix_of_the_step_before(clip: Schedule) -> None:
    # ε̲_{n−1} bounds A_{n−2}, the matrix that step n − 1 used; also where M decreases.
    params = parameters()
    optimizer = CASES["AMSGrad"](params, clip=clip)
    tightest = 0.0
    for n in range(1, 101):
        fill_gradients(params, n, scale=10.0)
        optimizer.step()
        lower, upper = optimizer.preconditioner_bounds(n + 1)
        for p in params:
            matrix = (1e-4 + optimizer.state[p]["largest"]) ** -0.5
            assert lower * (1 - 1e-14) <= matrix.min().item()
            assert matrix.max().item() <= upper
            tightest = max(tightest, lower / matrix.min().item())
    assert tightest > 0.9  # the gradients are large enough for the bound to mean something


def test_without_clipping_the_lower_bound_is_zero() -> None:
    assert AMSGrad(parameters(), 0.1, eps=0.5).preconditioner_bounds(2) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"betas": (1.0, 0.9)}, r"betas\[0\] must be in \[0, 1\), got 1\.0 in param group 0"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\] must be in \[0, 1\), got -0\.1"),
        ({"betas": (0.9, math.nan)}, r"betas\[1\] must be in \[0, 1\), got nan"),
        ({"eps": 0.0}, r"eps must be in \(0, 1000\] .* got 0\.0"),
        ({"eps": -1.0}, r"eps must be in \(0, 1000\] .* got -1\.0"),
        ({"clip": 0.0}, r"clip must be a number > 0 .*, got 0\.0"),
    ],
)
def test_refuses_bad_hyperparameters(changes: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CASES["AMSGrad"](parameters(), **changes)
