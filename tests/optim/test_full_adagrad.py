from __future__ import annotations

import math

import pytest
import torch

from mlmcgrad.optim import Adagrad, FullAdagrad
from mlmcgrad.schedules import Schedule, power
from tests.optim.optim_cases import (
    CASES,
    close,
    fill_gradients,
    parameters,
    recorded_noise,
    run,
    values,
)
from tests.optim.optim_reference import full_adagrad


@pytest.mark.parametrize("clip", [power(0.5, 0.2), lambda n: math.inf])
def test_equals_the_scalar_reference(clip: Schedule) -> None:
    params = parameters()
    noise = recorded_noise(params, 200)
    lr = power(0.05, -0.5)
    expected = full_adagrad(
        values(params),
        lambda theta, n: [0.3 * t + x for t, x in zip(theta, noise[n], strict=True)],
        200,
        lr,
        1e-2,
        lambda n: clip(n + 1),
    )
    optimizer = FullAdagrad(params, lr, eps=0.1, clip=clip)
    run(optimizer, params, 1, 200)
    assert close(values(params), expected)


def test_one_dimension_is_diagonal_adagrad() -> None:
    full, diagonal = parameters(((1,),)), parameters(((1,),))
    run(FullAdagrad(full, 0.1, eps=0.5, clip=0.7), full, 1, 50)
    run(Adagrad(diagonal, 0.1, eps=0.5, clip=0.7), diagonal, 1, 50)
    assert close(values(full), values(diagonal))


def test_bounds_hold_for_the_matrix_of_the_step() -> None:
    params = parameters()
    optimizer = CASES["FullAdagrad"](params)
    for n in range(1, 101):
        fill_gradients(params, n, scale=10.0)
        optimizer.step()
        outer = optimizer.state[params[0]]["outer"] / n
        eigenvalues = (1e-2 + torch.linalg.eigvalsh(outer).clamp_min(0.0)) ** -0.5
        lower, upper = optimizer.preconditioner_bounds(n)
        assert lower * (1 - 1e-12) <= eigenvalues.min().item()
        assert eigenvalues.max().item() <= upper * (1 + 1e-12)


def test_bounds_by_hand() -> None:
    optimizer = FullAdagrad(parameters(), 0.1, eps=0.5, clip=2.0)
    assert math.isclose(optimizer.preconditioner_bounds(3)[0], 4.25**-0.5)
    assert FullAdagrad(parameters(), 0.1, eps=0.5).preconditioner_bounds(1) == (0.0, 2.0)


def test_a_zero_gradient_is_fine() -> None:
    theta = torch.ones(3)
    theta.grad = torch.zeros(3)
    FullAdagrad([theta], 0.1).step()
    assert torch.equal(theta, torch.ones(3))


def test_a_missing_gradient_counts_as_zero() -> None:
    results = []
    for missing in (None, torch.zeros(1)):
        a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
        optimizer = FullAdagrad([a, b], 0.1, eps=0.5**0.5)
        for gradient in (torch.tensor([1.0, -1.0]), torch.tensor([2.0, 1.0])):
            a.grad, b.grad = gradient, missing
            optimizer.step()
        results.append((a.tolist(), b.tolist(), optimizer.state[a]["outer"].tolist()))
    assert results[0] == results[1]


def test_refuses_large_dimensions() -> None:
    with pytest.raises(ValueError, match=r"dimension in param group 0 is 10, beyond max_dim.*=9;"):
        FullAdagrad([torch.ones(10)], 0.1, max_dimension=9)
    FullAdagrad([torch.ones(1)], 0.1, max_dimension=1)
    optimizer = FullAdagrad([torch.ones(9)], 0.1, max_dimension=9)
    with pytest.raises(ValueError, match="dimension in param group 1 is 10"):
        optimizer.add_param_group({"params": [torch.ones(10)]})
    assert len(optimizer.param_groups) == 1


def test_refuses_mixed_or_half_precision() -> None:
    with pytest.raises(TypeError, match="param group 0 must share one device and be all float32"):
        FullAdagrad([torch.ones(1), torch.ones(1, dtype=torch.float64)], 0.1)
    with pytest.raises(TypeError, match=r"torch\.float16"):
        FullAdagrad([torch.ones(1, dtype=torch.float16)], 0.1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"eps": 0.0}, r"eps must be in \(0, 1000\] .* got 0\.0"),
        ({"clip": 0.0}, r"clip must be a number > 0 .*, got 0\.0"),
        ({"max_dimension": 0}, "max_dimension must be an integer ≥ 1, got 0"),
        ({"max_dimension": 2.5}, r"max_dimension must be an integer ≥ 1, got 2\.5"),
        ({"max_dimension": True}, "max_dimension must be an integer ≥ 1, got True"),
    ],
)
def test_refuses_bad_hyperparameters(changes: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CASES["FullAdagrad"](parameters(), **changes)
