"""The torus problem: every exact answer against an independent way to get it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mlmcgrad.problems import Sticky, sticky
from tests.chains import average_law, rng, unit


def _slopes(function: object, theta: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of a function of (rows, 2), one coordinate after the other."""
    assert callable(function)
    columns = []
    for i in range(2):
        shift = torch.zeros(2, dtype=torch.float64)
        shift[i] = step
        columns.append((function(theta + shift) - function(theta - shift)) / (2.0 * step))
    return torch.stack(columns, -1)


@pytest.fixture(params=[0, 1, 2])
def problem(request: pytest.FixtureRequest) -> Sticky:
    return sticky(rows=5, stay=0.7, seed=request.param)


def test_derivatives_are_slopes(problem: Sticky) -> None:
    theta = problem.theta.detach()
    gradient = problem.gradient(theta)
    assert torch.allclose(gradient, _slopes(problem.objective, theta), atol=1e-8)
    assert torch.allclose(problem.hessian(theta), _slopes(problem.gradient, theta), atol=1e-8)
    assert torch.equal(problem.exact_gradient()[0], gradient)
    # V by its definition, one state after the other
    values = problem.values(theta)
    by_hand = sum(values[:, x].exp() for x in range(4))
    assert isinstance(by_hand, Tensor)
    mean = sum(problem.frequency[x] * values[:, x] for x in range(4))
    assert torch.allclose(problem.objective(theta), by_hand.log() - mean)


def test_loss_has_the_gradient_h(problem: Sticky) -> None:
    for x in range(4):
        total = problem.loss(torch.full((5,), x), problem.theta).sum()
        (gradient,) = torch.autograd.grad(total, problem.theta)
        assert torch.allclose(gradient, problem.slopes(problem.theta.detach())[:, x], atol=1e-12)


def test_chain_averages_by_enumeration(problem: Sticky) -> None:
    theta = problem.theta.detach()
    matrices, slopes = problem.matrix(theta), problem.slopes(theta)
    for row in range(5):
        law = problem.law(theta)[row]
        assert torch.allclose(law @ matrices[row], law, atol=1e-14)
        assert torch.allclose(matrices[row].sum(1), torch.ones(4).double(), atol=1e-14)
        for start, length in ((0, 1), (2, 2), (3, 9)):
            expected = average_law(matrices[row], unit(4, start), length) @ slopes[row]
            biased = problem.biased_gradient(theta, length, start)[row]
            assert torch.allclose(biased, expected, atol=1e-13)


def test_periodic_and_not_convex(problem: Sticky) -> None:
    theta = problem.theta.detach()
    assert torch.allclose(problem.gradient(theta + 2.0 * math.pi), problem.gradient(theta))
    anywhere = torch.rand(500, 2, dtype=torch.float64, generator=rng()) * 2.0 * math.pi
    smallest = torch.linalg.eigvalsh(problem.hessian(anywhere))[:, 0]
    assert (smallest < -0.1).any()
    assert (smallest > 0.0).any()


def test_smoothness_holds_between_the_points_of_the_grid(problem: Sticky) -> None:
    """A grid without margins is too low: 9 × 9 points miss the true suprema, margins cover them."""
    coarse, fine = problem.smoothness(9), problem.smoothness(200)
    theta = torch.rand(20_000, 2, dtype=torch.float64, generator=rng(1)) * 2.0 * math.pi
    slope = problem.slopes(theta).norm(dim=-1).max().item()
    bend = torch.linalg.eigvalsh(problem.hessian(theta)).abs().max().item()
    values = problem.objective(theta)
    for constants in (coarse, fine):
        assert slope <= constants.G
        assert bend <= constants.L
        assert constants.lowest <= values.min().item()
        # Null: E V(θ_0) − min V ≤ gap; 6 standard errors of a mean of 20 000.
        error = values.std().item() / math.sqrt(len(values))
        assert values.mean().item() - values.min().item() <= constants.gap + 6.0 * error
    assert pytest.approx(slope, rel=0.1) == fine.G
    excess = problem.smoothness(400).L - bend
    assert excess == pytest.approx((fine.L - bend) / 2.0, rel=0.1)  # margins vanish with 1/m
    assert fine.gap == pytest.approx(values.mean().item() - values.min().item(), rel=0.05)
    line = torch.arange(9, dtype=torch.float64) * (2.0 * math.pi / 9)
    grid = torch.cartesian_prod(line, line)
    assert problem.slopes(grid).norm(dim=-1).max().item() < slope


def test_biased_minima(problem: Sticky) -> None:
    theta = problem.theta.detach()
    for length in (1, 2, 64):
        ends = problem.biased_minima(theta, length, start=1)
        assert problem.biased_gradient(ends, length, 1).abs().max() < 1e-8
        bend = _slopes(lambda t, n=length: problem.biased_gradient(t, n, 1), ends)
        share = problem.bias_share(length)
        assert torch.allclose(problem.hessian(ends, share, 1), bend, atol=1e-7)
        assert (torch.linalg.eigvalsh(bend) > -1e-4).all()
    # A long chain has no bias left to speak of.
    left = problem.gradient(problem.biased_minima(theta, 4096, start=1)).norm(dim=1)
    assert left.max() < 0.01
