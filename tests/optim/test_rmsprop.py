from __future__ import annotations

import math

import pytest
import torch

from mlmcgrad.optim import RMSProp
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
from tests.optim.optim_reference import rmsprop


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("clip", [power(0.5, 0.2), lambda n: math.inf])
def test_equals_the_scalar_reference(foreach: bool, clip: Schedule) -> None:
    params = parameters(WIDE)
    noise = recorded_noise(params, 200)
    lr = power(0.05, -0.5)
    expected = rmsprop(
        values(params),
        lambda theta, n: [0.3 * t + x for t, x in zip(theta, noise[n], strict=True)],
        200,
        lr,
        0.9,
        1e-4,
        lambda n: clip(n + 1),
    )
    optimizer = RMSProp(params, lr, alpha=0.9, eps=1e-2, clip=clip, foreach=foreach)
    run(optimizer, params, 1, 200)
    assert close(values(params), expected)


def test_equals_torch_without_regularization() -> None:
    # torch adds eps outside the root: equal for eps = 0 and δ → 0.
    ours, reference = parameters(WIDE), parameters(WIDE)
    first = RMSProp(ours, lr=0.01, alpha=0.9, eps=1e-15)
    second = torch.optim.RMSprop(reference, lr=0.01, alpha=0.9, eps=0.0)
    for n in range(1, 201):
        fill_gradients(ours, n)
        fill_gradients(reference, n)
        first.step()
        second.step()
    assert close(values(ours), values(reference))


def test_bounds_hold_for_the_matrix_of_the_step() -> None:
    params = parameters()
    optimizer = CASES["RMSProp"](params)
    for n in range(1, 101):
        fill_gradients(params, n, scale=10.0)
        optimizer.step()
        lower, upper = optimizer.preconditioner_bounds(n)
        for p in params:
            matrix = (1e-4 + optimizer.state[p]["average"]) ** -0.5
            assert lower * (1 - 1e-14) <= matrix.min().item()
            assert matrix.max().item() <= upper


def test_bounds_by_hand() -> None:
    optimizer = RMSProp(parameters(), 0.1, alpha=0.5, eps=0.5, clip=2.0)
    lower, upper = optimizer.preconditioner_bounds(2)
    assert math.isclose(lower, (0.25 + 4.0 * 0.75) ** -0.5)
    assert upper == 2.0
    assert RMSProp(parameters(), 0.1, eps=0.5).preconditioner_bounds(1) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"alpha": 1.0}, r"alpha must be in \[0, 1\), got 1\.0"),
        ({"eps": 0.0}, r"eps must be in \(0, 1000\] .* got 0\.0"),
        ({"clip": 0.0}, r"clip must be a number > 0 .*, got 0\.0"),
    ],
)
def test_refuses_bad_hyperparameters(changes: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CASES["RMSProp"](parameters(), **changes)
