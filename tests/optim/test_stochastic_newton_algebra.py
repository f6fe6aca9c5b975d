from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from mlmcgrad.optim.dense import bounded_inverse, hessian_product, move_to_secant
from tests.statistics import student_isf


def symmetric(d: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    matrix = torch.randn(d, d, generator=rng, dtype=torch.float64)
    return matrix + matrix.T


def test_hessian_product_equals_the_hessian_by_hand() -> None:
    # loss = a_0³ a_1 + sin(a_0 b), with a, b = (0.3, −0.7), 1.2
    a = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.2], dtype=torch.float64, requires_grad=True)
    x, y, w = 0.3, -0.7, 1.2
    sine, cosine = math.sin(x * w), math.cos(x * w)
    hessian = [
        [6 * x * y - w * w * sine, 3 * x * x, cosine - x * w * sine],
        [3 * x * x, 0.0, 0.0],
        [cosine - x * w * sine, 0.0, -x * x * sine],
    ]
    z = [1.0, 2.0, -1.0]
    expected = [sum(h * d for h, d in zip(row, z, strict=True)) for row in hessian]
    direction = [torch.tensor(z[:2], dtype=torch.float64), torch.tensor(z[2:], dtype=torch.float64)]
    loss = a[0] ** 3 * a[1] + (a[0] * b[0]).sin()
    product = torch.cat(hessian_product(loss, [a, b], direction))
    assert torch.allclose(product, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=0)


def test_hessian_product_of_a_linear_loss_is_zero() -> None:
    a = torch.ones(2, requires_grad=True)
    unused = torch.ones(1, requires_grad=True)
    product = hessian_product(3.0 * a.sum(), [a, unused], [torch.ones(2), torch.ones(1)])
    assert torch.equal(torch.cat(product), torch.zeros(3))
    (alone,) = hessian_product(3.0 * a.sum(), [a], [torch.ones(2)])
    assert torch.equal(alone, torch.zeros(2))


def test_the_projection_is_the_nearest_symmetric_solution() -> None:
    start, target = symmetric(4, 0), symmetric(4, 1)
    z = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    moved = start.clone()
    move_to_secant(moved, z, target @ z, 1.0)
    torch.testing.assert_close(moved @ z, target @ z, rtol=1e-13, atol=1e-13)
    assert torch.equal(moved, moved.T)
    # Orthogonality characterises the nearest point: target also satisfies the equation.
    inner = ((start - moved) * (target - moved)).sum()
    assert abs(inner.item()) < 1e-12


@pytest.mark.parametrize("fraction", [0.3, 1.0])
def test_exact_products_lead_to_the_hessian(fraction: float) -> None:
    rng = torch.Generator().manual_seed(2)
    target, estimate = symmetric(5, 3), torch.eye(5, dtype=torch.float64)
    error = (estimate - target).norm()
    for _ in range(300):
        z = torch.randn(5, generator=rng, dtype=torch.float64)
        move_to_secant(estimate, z, target @ z, fraction)
        now = (estimate - target).norm()
        assert now <= error * (1 + 1e-12) + 1e-13  # never grows
        error = now
    assert error < 1e-8


def noisy_replicates(
    update: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], None],
) -> torch.Tensor:
    """40 independent estimates from 400 pairs (z, (H + E) z); E has entries N(0, 0.5²)."""
    rng, estimates = torch.Generator().manual_seed(8), []
    for _ in range(40):
        estimate = torch.eye(3, dtype=torch.float64)
        for k in range(1, 401):
            noise = 0.5 * torch.randn(3, 3, generator=rng, dtype=torch.float64)
            z = torch.randn(3, generator=rng, dtype=torch.float64)
            update(estimate, z, (HESSIAN + noise) @ z, min(1.0, 6.0 / k))
        estimates.append(estimate)
    return torch.stack(estimates)  # (replicates, 3, 3)


HESSIAN = torch.tensor([[4.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)


def unbiased(replicates: torch.Tensor, truth: torch.Tensor) -> bool:
    """Student tests of H0: the mean of each entry is the truth; false alarm at most 1e-6 in all."""
    scores = (replicates.mean(0) - truth) / (replicates.std(0) / math.sqrt(len(replicates)))
    return bool(scores.abs().max().item() < student_isf(1e-6 / 18, len(replicates) - 1))


def test_noisy_products_are_averaged_without_bias() -> None:
    replicates = noisy_replicates(move_to_secant)
    assert unbiased(replicates, HESSIAN)
    assert replicates.std(0).max().item() < 0.25  # 0.5 and more before averaging


def test_planted_bug_updating_the_inverse_is_biased_under_noise() -> None:
    replicates = noisy_replicates(lambda b, z, y, a: move_to_secant(b, y, z, a))
    assert not unbiased(replicates, torch.linalg.inv(HESSIAN))


def test_the_inverse_is_bounded_positive_and_exact_inside_the_bounds() -> None:
    # Curvatures 4 and −2 are inside the bounds and become 1/4 and 1/2; 0 and 1000 are not.
    basis = torch.linalg.qr(symmetric(4, 5)).Q
    curvature = torch.tensor([4.0, -2.0, 0.0, 1000.0], dtype=torch.float64)
    inverse = bounded_inverse((basis * curvature) @ basis.T, 0.01, 10.0)
    expected = (basis * torch.tensor([0.25, 0.5, 10.0, 0.01], dtype=torch.float64)) @ basis.T
    torch.testing.assert_close(inverse, expected, rtol=1e-12, atol=1e-12)
