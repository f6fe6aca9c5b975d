"""Variances within and beyond a pilot, against exact ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mlmcgrad.diagnostics._decay import Decay, average_variance
from mlmcgrad.diagnostics._pilot import Group, Pilot, Simulator, run_pilot
from tests.diagnostics.planned import finite, importance


def autoregressive(time: float, highest: int, count: int = 4000) -> Pilot:
    """Chains of a stationary autoregression."""
    rng, rho = np.random.default_rng(1), math.exp(-1.0 / time)
    groups = []
    for j in range(highest + 1):
        x = rng.standard_normal(count)
        steps = []
        for _ in range(2**j):
            x = rho * x + math.sqrt(1.0 - rho * rho) * rng.standard_normal(count)
            steps.append(x)
        sums = np.cumsum(np.stack(steps, 1), 1)
        h = np.stack([sums[:, 2**level - 1] / 2**level for level in range(j + 1)], 1)
        groups.append(Group(torch.from_numpy(h[:, :, None]), 2.0**j, 1.0))
    return Pilot(tuple(groups), 0, nested=False)


@pytest.mark.parametrize("time", [1.0, 5.0])
@pytest.mark.parametrize("p", [1, 2, 7])
def test_variance_of_an_average(time: float, p: int) -> None:
    rho = math.exp(-1.0 / time)
    covariance = rho ** np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
    assert average_variance(time, p) == pytest.approx(covariance.mean(), abs=1e-12)


@pytest.mark.parametrize("time", [0.5, 3.0, 10.0])
def test_the_time_of_an_autoregression_is_found(time: float) -> None:
    assert Decay(autoregressive(time, 7)).time == pytest.approx(time, rel=0.25)


def test_covariances_beyond_the_pilot() -> None:
    time, highest, level = 2.0, 6, 9
    found = Decay(autoregressive(time, highest)).covariance(level)
    lengths = [2**i for i in range(level + 1)]
    sums = {p: p * p * average_variance(time, p) for p in [*lengths, *_gaps(lengths)] if p}
    h = torch.zeros(level + 1, level + 1, dtype=torch.float64)
    for i, p in enumerate(lengths):
        for j, q in enumerate(lengths):
            gap = abs(q - p)
            h[i, j] = (sums[p] + sums[q] - (sums[gap] if gap else 0.0)) / (2.0 * p * q)
    change = torch.eye(level + 1, dtype=torch.float64)
    change -= torch.diag(torch.ones(level, dtype=torch.float64), -1)
    assert torch.allclose(found, change @ h @ change.T, atol=0.05, rtol=0.0)
    # The variance of the longest average, where mistakes would not cancel.
    assert float(found.sum()) == pytest.approx(average_variance(time, 2.0**level), rel=0.2)
    assert float(torch.linalg.eigvalsh(found).min()) > -1e-12


def _gaps(lengths: list[int]) -> list[int]:
    return [q - p for p in lengths for q in lengths if q > p]


def test_independent_levels_would_be_seen() -> None:
    """The planted bug: differences beyond the pilot as if they were new noise."""
    time, level = 2.0, 9
    decay = Decay(autoregressive(time, 6))
    wrong = decay.covariance(level).clone()
    for m in range(7, level + 1):
        wrong[m, :m] = wrong[:m, m] = 0.0
    assert float(wrong.sum()) > 1.5 * average_variance(time, 2.0**level)


def test_a_slow_chain_is_not_taken_for_a_fast_one() -> None:
    known = finite(20, 2)  # forgets in 54 steps, and has fast modes too
    rng = torch.Generator().manual_seed(0)
    found = Decay(run_pilot(Simulator(known.gradient, known.x0, (), rng), 1e4))
    assert found.time > 15.0
    assert not found.long_enough
    fast = finite(6, 1)
    quick = Decay(run_pilot(Simulator(fast.gradient, fast.x0, (), rng), 5e4))
    assert quick.time < 4.0
    assert quick.long_enough
    assert quick.approach.slow < 0.5


def test_a_constant_has_no_variance() -> None:
    x = torch.ones(20, 1, 1, dtype=torch.float64)
    found = Decay(Pilot((Group(x, 1.0, 1.0),), 20, nested=False))
    assert found.time == 0.1
    assert float(found.covariance(3).abs().max()) == 0.0


def test_importance_sampling_beyond_the_pilot() -> None:
    gradient, y = importance()
    rng = torch.Generator().manual_seed(2)
    short = Decay(run_pilot(Simulator(gradient, None, (y,), rng), 5e4, longest=2**4))
    long = Decay(run_pilot(Simulator(gradient, None, (y,), rng), 2e6, longest=2**8))
    assert (short.highest, long.highest) == (4, 8)
    mine, true = short.covariance(7), long.covariance(7)
    assert float(mine.sum()) == pytest.approx(float(true.sum()), rel=0.3)
    for level in range(5):
        assert float(mine[level, level]) == pytest.approx(float(true[level, level]), rel=0.5)


def test_products_go_on_by_halves() -> None:
    known = finite(6, 1)
    rng = torch.Generator().manual_seed(0)
    found = Decay(run_pilot(Simulator(known.gradient, known.x0, (), rng), 1e4))
    top = found.highest
    products = found.products(top + 2)
    assert torch.allclose(products[: top + 1, : top + 1], found.pilot.products(top))
    assert float(products[top + 2, top + 2]) == pytest.approx(float(products[top, top]) / 16.0)
    assert float(products[0, top + 1]) == pytest.approx(float(products[0, top]) / 2.0)


def _normal(mean: float, counts: tuple[int, ...], rows: int = 1) -> Decay:
    """H^{(2^l)} are independent normal vectors of two coordinates with one mean."""
    rng = torch.Generator().manual_seed(3)
    groups = tuple(
        Group(mean + torch.randn(count, j + 1, 2, dtype=torch.float64, generator=rng), 2.0**j, 1.0)
        for j, count in enumerate(counts)
    )
    return Decay(Pilot(groups, 0, nested=False, rows=rows))


def test_the_way_to_go_is_known_as_far_as_it_is_not_noise() -> None:
    far = _normal(3.0, (400, 200))
    for level, count in ((0, 600), (1, 200)):
        # 18, and the variance of a square with noise 2/count in two coordinates
        error = math.sqrt((4.0 * 18.0 * 2.0 / count + 2.0 * (2.0 / count) ** 2) / 2.0)
        square = far.mean_square(level)
        assert far.left(level) == pytest.approx(square - error, abs=0.3 * error)
    assert far.left(9) == far.left(1)


def test_a_way_to_go_within_its_noise_is_none() -> None:
    """Four points about a mean of (0.085, 0.085), 50 times each."""
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
    x = 0.085 + corners.repeat(50, 1)
    differing = torch.stack([corners[[1, 3, 0, 2]].repeat(50, 1) + 0.085, x], 1)
    near = Decay(Pilot((Group(x[:, None], 1.0, 1.0), Group(differing, 2.0, 1.0)), 0, nested=False))
    assert near.mean_square(1) == pytest.approx(2.0 * 0.085**2 - 0.01, rel=0.02)
    # √((4 · 0.0045 · 0.01 + 2 · 0.01²) / 2) = 0.014
    assert near.left(1) == 0.0


def test_the_way_to_go_needs_every_row() -> None:
    few = _normal(3.0, (60, 12), rows=20)
    assert few.pilot.covers(0)
    assert not few.pilot.covers(1)
    assert few.left(1) == few.left(0)
    enough = _normal(3.0, (60, 40), rows=20)
    assert enough.pilot.covers(1)
    assert enough.left(1) != enough.left(0)
