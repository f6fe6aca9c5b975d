from __future__ import annotations

import math

import pytest
import torch

from mlmcgrad.optim import Adagrad
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
from tests.optim.optim_reference import adagrad


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(
    ("lr", "epsilon", "clip"),
    [
        (power(0.1, -0.5), power(2.0, 0.1), power(0.5, 0.2)),
        (power(0.1, -0.5), power(5.0, 0.0), lambda n: math.inf),
        (lambda n: 0.05, lambda n: 1.0 + (n % 3), lambda n: 0.3 + (n % 4)),
    ],
)
def test_equals_the_scalar_reference(
    foreach: bool, lr: Schedule, epsilon: Schedule, clip: Schedule
) -> None:
    params = parameters(WIDE)
    noise = recorded_noise(params, 200)
    expected = adagrad(
        values(params),
        lambda theta, n: [0.3 * t + x for t, x in zip(theta, noise[n], strict=True)],
        200,
        lr,
        epsilon,
        lambda n: clip(n + 1),  # the paper's M_n, n ≥ 0
    )
    optimizer = Adagrad(params, lr=lr, eps=lambda n: 1 / epsilon(n), clip=clip, foreach=foreach)
    run(optimizer, params, 1, 200)
    assert close(values(params), expected)


def test_equals_torch_when_steps_are_rescaled() -> None:
    # torch sums squares and adds eps outside the root: γ_n = lr n^{-1/2}, ε → ∞ and no clipping
    # give lr Ĥ / (√Σ Ĥ² + 0).
    ours, reference = parameters(WIDE), parameters(WIDE)
    first = Adagrad(ours, lr=power(0.1, -0.5), eps=1e-15)
    second = torch.optim.Adagrad(reference, lr=0.1, eps=0.0)
    for n in range(1, 201):
        fill_gradients(ours, n)
        fill_gradients(reference, n)
        first.step()
        second.step()
    assert close(values(ours), values(reference))


def test_the_average_is_over_the_gradients_a_parameter_had() -> None:
    # One parameter misses every second step: it must move as if those steps were not counted,
    # except for the schedules, which are constant here.
    a, b = torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    both = Adagrad([a, b], lr=0.1, eps=1.0)
    c = torch.ones(2, dtype=torch.float64)
    single = Adagrad([c], lr=0.1, eps=1.0)
    for n in range(1, 21):
        a.grad = torch.full_like(a, 0.5)
        b.grad = 2.0 * b if n % 2 == 0 else None
        both.step()
        if n % 2 == 0:
            c.grad = 2.0 * c
            single.step()
    assert torch.equal(b, c)


def test_bounds_are_those_of_the_paper() -> None:
    epsilon, clip = power(3.0, 0.25), power(0.5, 0.3)
    optimizer = Adagrad(parameters(), lr=0.1, eps=lambda n: 1 / epsilon(n), clip=clip)
    assert optimizer.preconditioner_bounds(1) == (3.0, 3.0)  # ε̲_0 = ε_1
    for n in (2, 5, 40):
        expected = (epsilon(n) ** -2 + clip(n - 1) ** 2) ** -0.5  # M is increasing: sup is last
        assert math.isclose(optimizer.preconditioner_bounds(n)[0], expected, rel_tol=1e-15)
        # 1 / (1 / ε) differs from ε by at most two roundings.
        assert math.isclose(optimizer.preconditioner_bounds(n)[1], epsilon(n), rel_tol=4e-16)


def test_the_supremum_of_clip_is_not_its_last_value() -> None:
    optimizer = Adagrad(parameters(), lr=0.1, eps=1.0, clip=lambda n: 3.0 if n == 2 else 1.0)
    assert math.isclose(optimizer.preconditioner_bounds(2)[0], 2.0**-0.5)  # M_0 = 1 only
    assert math.isclose(optimizer.preconditioner_bounds(9)[0], 10.0**-0.5)  # M_1 = 3 in it
    assert math.isclose(optimizer.preconditioner_bounds(2)[0], 2.0**-0.5)  # asked out of order


def test_bounds_hold_for_the_auxiliary_matrix() -> None:
    # Ã_{n−1} = (ε_n^{-2} + (1/n) Σ_{k<n} squares)^{-1/2}: without the square of step n itself.
    epsilon = power(2.0, 0.1)
    params = parameters()
    optimizer = CASES["Adagrad"](params)
    assert isinstance(optimizer, Adagrad)
    for n in range(1, 101):
        lower, upper = optimizer.preconditioner_bounds(n)
        for p in params:
            before = optimizer.state[p]["sum"] if n > 1 else torch.zeros_like(p)
            auxiliary = (epsilon(n) ** -2 + before / n) ** -0.5
            assert lower * (1 - 1e-14) <= auxiliary.min().item()
            assert auxiliary.max().item() <= upper * (1 + 1e-14)
        fill_gradients(params, n, scale=10.0)
        optimizer.step()
        for p in params:
            matrix = (epsilon(n) ** -2 + optimizer.state[p]["sum"] / n) ** -0.5
            assert matrix.max().item() <= upper * (1 + 1e-14)


def test_without_clipping_the_lower_bound_is_zero() -> None:
    optimizer = Adagrad(parameters(), lr=0.1, eps=0.5)
    assert optimizer.preconditioner_bounds(1) == (2.0, 2.0)
    assert optimizer.preconditioner_bounds(2) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"eps": 0.0}, r"eps must be in \(0, 1000\] .* got 0\.0 in param group 0"),
        ({"eps": 1e4}, r"eps must be in \(0, 1000\] \(usually 1e-4.*got 10000\.0"),
        ({"eps": math.inf}, r"eps must be in \(0, 1000\] .* got inf"),
        ({"clip": -1.0}, r"clip must be a number > 0 .*, got -1\.0"),
        ({"clip": math.nan}, "clip must be a number > 0 .*, got nan"),
    ],
)
def test_refuses_bad_hyperparameters(changes: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CASES["Adagrad"](parameters(), **changes)
