"""Means of simulations of several targets: by hand, and what counts as noise."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from scipy import stats

from mlmcgrad.diagnostics._checks import (
    Mean,
    excess,
    fisher_tail,
    projection,
    size_of,
    student_quantile,
    targets,
)
from tests.chains import rng
from tests.statistics import mean_is

ONE = torch.zeros(6, dtype=torch.int64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=rng(seed))


def test_rows_with_the_same_context_have_the_same_target() -> None:
    y = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [1.0, 5.0]])
    assert targets((y, "word"), 4).tolist() == [0, 2, 0, 1]
    assert targets(({"y": y[:, 0]},), 4).tolist() == [0, 1, 0, 0]
    assert targets((), 3).tolist() == [0, 0, 0]


def test_the_noise_is_that_within_targets() -> None:
    """Targets of 2 and 3 simulations: Σ_s n_s/(n_s − 1) Σ (x − x̄_s)² / 25."""
    x = torch.tensor([[1.0], [3.0], [100.0], [106.0], [103.0]], dtype=torch.float64)
    found = Mean.of(x, torch.tensor([0, 0, 1, 1, 1]))
    assert found.value.item() == pytest.approx(62.6)
    assert found.spread.square().sum().item() == pytest.approx((2.0 * 2.0 + 1.5 * 18.0) / 25.0)
    assert found.freedom == 3
    assert found.rounding.item() == pytest.approx(1e-6 * float(size_of(x)))


def test_one_target_has_the_covariance_of_a_mean() -> None:
    x = normal(6, 3)
    found = Mean.of(x, ONE)
    torch.testing.assert_close(found.spread.T @ found.spread, torch.cov(x.T) / 6.0)
    assert found.freedom == 5


def test_a_target_with_one_simulation_has_no_noise_to_tell() -> None:
    found = Mean.of(normal(3, 1), torch.tensor([0, 1, 1]))
    assert found.spread[0].item() == 0.0
    assert found.freedom == 1


def test_the_difference_of_two_means() -> None:
    a, b = Mean.of(normal(6, 2), ONE), Mean.of(2.0 + normal(4, 2, seed=1), ONE[:4])
    found = a.minus(b)
    torch.testing.assert_close(found.value, a.value - b.value)
    expected = a.spread.T @ a.spread + b.spread.T @ b.spread
    torch.testing.assert_close(found.spread.T @ found.spread, expected)
    assert found.freedom == 3
    assert bool((found.rounding >= a.rounding).all())
    assert bool((found.rounding >= b.rounding).all())


def test_significance_is_that_of_the_largest_t() -> None:
    found = Mean.of(normal(6, 3) + 1.0, ONE)
    t = float((found.value / found.spread.square().sum(0).sqrt()).abs().max())
    assert found.significance() == pytest.approx(3.0 * fisher_tail(t * t, 1.0, 5), rel=1e-4)


def test_what_never_varies_is_0_or_significant() -> None:
    constant = torch.ones(6, 1, dtype=torch.float64)
    assert Mean.of(0.0 * constant.expand(6, 2), ONE).significance() == 1.0
    assert Mean.of(constant, ONE).significance() < 1e-20
    # A difference of numbers near 1 that is rounding, and one that is not.
    size = torch.ones(1, dtype=torch.float64)
    assert Mean.of(1e-9 * constant, ONE, size).significance() > 0.9
    assert Mean.of(1e-3 * constant, ONE, size).significance() < 1e-10


def test_against_is_hotellings_test() -> None:
    x, target = normal(40, 2), torch.zeros(40, dtype=torch.int64)
    found, value = Mean.of(x, target), torch.tensor([0.1, -0.2], dtype=torch.float64)
    off = x.mean(0) - value
    statistic = float(off @ torch.linalg.solve(torch.cov(x.T) / 40.0, off))
    expected = stats.f.sf(statistic * 38.0 / (39.0 * 2.0), 2, 38)
    assert found.against(value) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("shift", "right"), [(0.0, True), (0.1, False)])
def test_against_with_more_coordinates_than_simulations(shift: float, right: bool) -> None:
    """Null hypothesis: P(p < u) = u for projections; rate 1e-5. A shift is its planted bug."""
    target = torch.zeros(32, dtype=torch.int64)
    found = torch.tensor(
        [
            Mean.of(normal(32, 50, seed=i), target).against(torch.full((50,), shift).double())
            for i in range(400)
        ],
        dtype=torch.float64,
    )
    level = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    assert mean_is((found[:, None] < level).double(), level) == right


def test_against_leaves_out_what_is_always_0() -> None:
    x = torch.cat([normal(40, 1), torch.zeros(40, 1, dtype=torch.float64)], 1)
    target = torch.zeros(40, dtype=torch.int64)
    alone = Mean.of(x[:, :1], target).against(torch.zeros(1).double())
    assert Mean.of(x, target).against(torch.zeros(2).double()) == pytest.approx(alone)
    nothing = Mean.of(0.0 * x, target)
    assert nothing.against(torch.zeros(2).double()) == 1.0
    assert nothing.against(torch.ones(2).double()) == 0.0


def test_simulations_that_remember_are_told_from_those_that_do_not() -> None:
    first, second = normal(128, 3), normal(128, 3, seed=1)
    target = torch.zeros(128, dtype=torch.int64)
    ratio, p = excess(first, second, target)
    assert p > 1e-5
    assert ratio < 2.0
    ratio, p = excess(first + 3.0 * first, second + 3.0 * first, target)  # correlation 0.95
    assert p < 1e-10
    # Different targets may differ; only what differs within them is remembered.
    apart = torch.arange(128) % 2
    shift = 10.0 * apart[:, None]
    assert excess(first + shift, second + shift, apart)[1] > 1e-5
    assert excess(first + shift, second + shift, target)[1] < 1e-10


def test_the_ratio_by_hand() -> None:
    first = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    second = torch.tensor([[2.0], [5.0]], dtype=torch.float64)
    ratio, _ = excess(first, second, ONE[:2])  # sums 3, 7 and differences −1, −3
    assert ratio == pytest.approx(4.0, rel=1e-6)
    still = torch.ones(2, 1, dtype=torch.float64)
    assert excess(still, still, ONE[:2])[0] == pytest.approx(1.0)


def test_projections_are_always_the_same() -> None:
    assert projection(100, 7).shape == (100, 7)
    assert projection(10_000, 3).norm(dim=0).tolist() == pytest.approx([1.0] * 3, abs=0.05)
    assert torch.equal(projection(100, 7), projection(100, 7))


@pytest.mark.parametrize("a", [1, 2, 7, 60])
@pytest.mark.parametrize("b", [1, 3, 126, 20_000])
def test_the_tail_is_that_of_scipy(a: int, b: int) -> None:
    for x in (1e-6, 0.3, 1.0, 1.7, 5.0, 80.0, 1e4):
        assert fisher_tail(x, a, b) == pytest.approx(stats.f.sf(x, a, b), rel=1e-10, abs=1e-300)


def test_the_ends_of_the_tail() -> None:
    assert fisher_tail(0.0, 3, 4) == 1.0
    assert fisher_tail(1e300, 3, 4000) == fisher_tail(math.inf, 3, 4) == 0.0


def test_student() -> None:
    for freedom in (1, 5, 126):
        assert fisher_tail(2.5**2, 1.0, freedom) == pytest.approx(2.0 * stats.t.sf(2.5, freedom))
        for p in (0.5, 0.05, 1e-9):
            found = student_quantile(p, freedom)
            assert found == pytest.approx(stats.t.isf(p / 2.0, freedom), rel=1e-9)


@pytest.mark.parametrize(("shift", "right"), [(0.0, True), (0.2, False)])
def test_p_values_are_uniform_if_the_mean_is_right(shift: float, right: bool) -> None:
    """Null hypothesis: P(p < u) = u; rate 1e-5. A mean that is not 0 is its planted bug."""
    target = torch.zeros(16, dtype=torch.int64)
    x = torch.randn(4000, 16, 3, dtype=torch.float64, generator=rng()) + shift
    mixed = x @ torch.tensor([[2.0, 0, 0], [1, 1, 0], [0, 3, 0.1]], dtype=torch.float64)
    found = torch.tensor(
        [Mean.of(s, target).against(torch.zeros(3).double()) for s in mixed], dtype=torch.float64
    )
    level = torch.tensor([0.01, 0.1, 0.5, 0.9], dtype=torch.float64)
    assert mean_is((found[:, None] < level).double(), level) == right


def test_without_scipy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'mlmcgrad\[diagnostics\]'"):
        student_quantile(0.05, 3)
