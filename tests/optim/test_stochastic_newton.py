from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mlmcgrad.optim import StochasticNewton
from mlmcgrad.schedules import power
from tests.optim.optim_cases import (
    CASES,
    close,
    fill_gradients,
    parameters,
    recorded_noise,
    run,
    snapshot,
    values,
)
from tests.optim.optim_reference import newton


@pytest.mark.parametrize("averaging", [2.0, math.inf])
def test_equals_the_scalar_reference(averaging: float) -> None:
    params = parameters()
    noise = recorded_noise(params, 200)
    rng = torch.Generator().manual_seed(7)
    diagonal = torch.tensor([5.0, -1.0, 2.0, 0.01, 30.0], dtype=torch.float64)
    pairs = []
    for _ in range(200):
        z = torch.randn(5, generator=rng, dtype=torch.float64)
        pairs.append((z, diagonal * z + 0.1 * z.flip(0)))
    lr = power(0.05, -0.5)
    expected = newton(
        values(params),
        lambda theta, n: [0.3 * t + x for t, x in zip(theta, noise[n], strict=True)],
        200,
        lr,
        (0.1, 2.0),
        lambda n: (pairs[n][0].tolist(), pairs[n][1].tolist()),
        averaging,
    )
    optimizer = StochasticNewton(params, lr, lower=0.1, upper=2.0, averaging=averaging)
    for n in range(1, 201):
        fill_gradients(params, n)
        optimizer.observe([pairs[n - 1][0]], [pairs[n - 1][1]])
        optimizer.step()
    assert close(values(params), expected)


def test_equal_bounds_are_plain_sgd() -> None:
    ours, reference = parameters(), parameters()
    first = StochasticNewton(ours, 0.1, lower=1.0, upper=1.0)
    second = torch.optim.SGD(reference, 0.1)
    run(first, ours, 1, 50)
    for n in range(1, 51):
        fill_gradients(reference, n)
        second.step()
    assert close(values(ours), values(reference))


def test_the_matrix_of_a_step_does_not_know_its_data() -> None:
    # Assumption A5: A_{n−1} is known before the data of step n. The first step is B_0's.
    theta = torch.ones(2, dtype=torch.float64)
    optimizer = StochasticNewton([theta], 1.0, initial_curvature=2.0)
    theta.grad = torch.ones_like(theta)
    z = torch.tensor([1.0, 3.0], dtype=torch.float64)
    optimizer.observe([z], [50.0 * z])
    optimizer.step()
    assert torch.equal(theta, torch.full_like(theta, 0.5))
    optimizer.step()
    assert not torch.equal(theta, torch.zeros_like(theta))


def test_bounds_hold_on_a_non_convex_problem_with_noise() -> None:
    rng = torch.Generator().manual_seed(3)
    params = parameters()
    optimizer = StochasticNewton(params, 0.01, lower=0.05, upper=3.0)
    for _ in range(100):
        flat = torch.cat([p.reshape(-1) for p in params])
        noise = torch.randn(5, generator=rng, dtype=torch.float64)
        loss = (2.0 * flat).cos().sum() + flat[0] * flat[1] + (noise * flat.square()).sum()
        optimizer.zero_grad()
        optimizer.observe_loss(loss, rng)
        torch.autograd.backward(loss)
        optimizer.step()
        eigenvalues = torch.linalg.eigvalsh(optimizer.state[params[0]]["inverse"])
        assert eigenvalues.min().item() >= 0.05 * (1 - 1e-12)
        assert eigenvalues.max().item() <= 3.0 * (1 + 1e-12)
    assert optimizer.preconditioner_bounds(17) == (0.05, 3.0)


def test_each_group_has_its_own_matrix() -> None:
    a = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = StochasticNewton([{"params": [a]}, {"params": [b]}], 1.0, averaging=math.inf)
    rng = torch.Generator().manual_seed(0)
    for _ in range(40):
        optimizer.observe_loss(a[0] ** 2 + 3.0 * a[1] ** 2 + 5.0 * b[0] ** 2 + a[0] * b[0], rng)
    expected = torch.diag(torch.tensor([2.0, 6.0], dtype=torch.float64))
    torch.testing.assert_close(optimizer.state[a]["hessian"], expected, rtol=1e-6, atol=1e-6)
    assert math.isclose(optimizer.state[b]["hessian"].item(), 10.0, rel_tol=1e-9)


def test_a_matrix_is_decomposed_only_after_a_new_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    decomposed: list[torch.Tensor] = []
    original = torch.linalg.eigh

    def eigh(matrix: torch.Tensor) -> Any:
        decomposed.append(matrix)
        return original(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    theta = torch.ones(2, requires_grad=True)
    optimizer = StochasticNewton([theta], lr=0.1)
    counts = []
    for pair in (False, True, False, False):
        if pair:
            optimizer.observe([torch.ones(2)], [torch.ones(2)])
        theta.grad = torch.ones(2)
        optimizer.step()
        counts.append(len(decomposed))
    assert counts == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("z", "y", "match"),
    [
        (torch.ones(4), torch.ones(5), "must have the 5 coordinates of param group 0, got 4 and 5"),
        (torch.zeros(5), torch.ones(5), "direction not zero, got norms 0.0"),
        (torch.ones(5), torch.full((5,), math.nan), "must be finite .* skip this pair"),
        (torch.ones(5), torch.full((5,), math.inf), "must be finite .* skip this pair"),
        (torch.full((5,), math.inf), torch.ones(5), "must be finite .* skip this pair"),
    ],
)
def test_refuses_bad_pairs(z: torch.Tensor, y: torch.Tensor, match: str) -> None:
    params = parameters()
    optimizer = CASES["StochasticNewton"](params)
    assert isinstance(optimizer, StochasticNewton)
    run(optimizer, params, 1, 3)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=match):
        optimizer.observe([z], [y])
    assert snapshot(optimizer) == before


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"lower": 0.0}, r"lower must be a finite number > 0, got 0\.0"),
        ({"lower": 3.0}, r"lower must not exceed upper, got 3\.0 and 2\.0 in param group 0"),
        ({"upper": math.inf}, "upper must be a finite number > 0, got inf"),
        ({"initial_curvature": -1.0}, r"initial_curvature must be a finite number > 0, got -1\.0"),
        ({"averaging": 0.0}, r"averaging must be a number > 0 .*, got 0\.0"),
        ({"max_dimension": 3}, "is 5, beyond max_dimension=3"),
    ],
)
def test_refuses_bad_hyperparameters(changes: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CASES["StochasticNewton"](parameters(), **changes)
