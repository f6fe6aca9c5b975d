"""Hotelling's test and its tails, against SciPy, by hand and by simulation."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from mlmcgrad.hotelling import Hotelling, fisher_tail, hotelling, student_quantile, student_tail
from tests.chains import rng
from tests.statistics import mean_is


@pytest.mark.parametrize("a", [1, 2, 7, 60])
@pytest.mark.parametrize("b", [1, 3, 126, 20_000])
def test_the_tail_is_that_of_scipy(a: int, b: int) -> None:
    for x in (1e-6, 0.3, 1.0, 1.7, 5.0, 80.0, 1e4):
        assert fisher_tail(x, a, b) == pytest.approx(stats.f.sf(x, a, b), rel=1e-10, abs=1e-300)


def test_the_ends_of_the_tail() -> None:
    assert fisher_tail(0.0, 3, 4) == fisher_tail(-1.0, 3, 4) == 1.0
    assert fisher_tail(1e300, 3, 4000) == fisher_tail(math.inf, 3, 4) == 0.0


def test_student() -> None:
    for freedom in (1, 5, 126):
        assert student_tail(2.5, freedom) == pytest.approx(2.0 * stats.t.sf(2.5, freedom))
        for p in (0.5, 0.05, 1e-9):
            found = student_quantile(p, freedom)
            assert found == pytest.approx(stats.t.isf(p / 2.0, freedom), rel=1e-9)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, float("nan")])
def test_no_quantile_of_what_is_not_a_probability(p: float) -> None:
    with pytest.raises(ValueError, match="probability must lie strictly between 0 and 1"):
        student_quantile(p, 3)


def test_by_hand() -> None:
    """T² = 1/1 + 4/2 = 3, F = 3·(9 − 2 + 1)/(9·2)."""
    mean = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = hotelling(mean, torch.diag(mean), freedom=9)
    assert found == Hotelling(24.0 / 18.0, (2, 8))
    assert found.p_value == pytest.approx(stats.f.sf(24.0 / 18.0, 2, 8))


def test_too_few_degrees_of_freedom() -> None:
    with pytest.raises(ValueError, match="freedom must be ≥ 2, the numbers of the mean, got 1"):
        hotelling(torch.ones(2), torch.eye(2), freedom=1)
    assert hotelling(torch.ones(2), torch.eye(2), freedom=2).degrees == (2, 1)


@pytest.mark.parametrize(("shift", "right"), [(0.0, True), (0.2, False)])
def test_p_values_are_uniform_if_the_mean_is_0(shift: float, right: bool) -> None:
    """Null hypothesis: P(p < u) = u; rate 1e-5. A mean that is not 0 is its planted bug."""
    x = torch.randn(4000, 12, 3, dtype=torch.float64, generator=rng()) + shift
    mixed = x @ torch.tensor([[2.0, 0, 0], [1, 1, 0], [0, 3, 0.1]], dtype=torch.float64)
    found = torch.tensor(
        [hotelling(s.mean(0), torch.cov(s.T) / 12.0, 11).p_value for s in mixed],
        dtype=torch.float64,
    )
    level = torch.tensor([0.01, 0.1, 0.5, 0.9], dtype=torch.float64)
    assert mean_is((found[:, None] < level).double(), level) == right
