import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.paper.experiments.accuracy import fit_line, fit_power


@given(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0), st.integers(3, 10))
def test_a_line_is_found_exactly(slope: float, intercept: float, points: int) -> None:
    x = [float(i) for i in range(points)]
    fit = fit_line(x, [intercept + slope * a for a in x])
    assert fit.slope == pytest.approx(slope, abs=1e-9)
    assert fit.intercept == pytest.approx(intercept, abs=1e-9)
    assert fit.slope_se == pytest.approx(0.0, abs=1e-7)


def test_weights_and_errors_against_linear_algebra() -> None:
    """(XᵀWX)^{-1} is the covariance matrix of a weighted fit with known errors."""
    rng = np.random.default_rng(0)
    x, se = rng.normal(size=8), rng.uniform(0.1, 2.0, size=8)
    y = 1.0 + 2.0 * x + se * rng.normal(size=8)
    design = np.stack([np.ones(8), x], 1)
    covariance = np.linalg.inv(design.T @ np.diag(se**-2) @ design)
    expected = covariance @ design.T @ (y / se**2)
    fit = fit_line(list(x), list(y), list(se))
    assert [fit.intercept, fit.slope] == pytest.approx(list(expected))
    assert fit.slope_se == pytest.approx(math.sqrt(covariance[1, 1]))
    plain = fit_line(list(x), list(y))
    residual = y - plain.intercept - plain.slope * x
    error = math.sqrt((residual @ residual) / 6 / ((x - x.mean()) ** 2).sum())
    assert plain.slope_se == pytest.approx(error)
    assert plain.r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


def test_two_and_three_points_by_hand() -> None:
    two = fit_line([1.0, 3.0], [2.0, 2.0])
    assert (two.slope, two.slope_se, two.intercept, two.r2) == (0.0, 0.0, 2.0, 1.0)
    three = fit_line([0.0, 1.0, 2.0], [0.0, 1.0, 1.0])  # residuals −1/6, 1/3, −1/6
    assert three.slope == pytest.approx(1 / 2)
    assert three.intercept == pytest.approx(1 / 6)
    assert three.slope_se == pytest.approx(math.sqrt(1 / 6 / 2))
    assert three.r2 == pytest.approx(1.0 - (1 / 6) / (2 / 3))


def test_a_power_by_hand() -> None:
    """Through (1, ½) and (4, 8), each known to a tenth of itself; the third point is lost."""
    fit = fit_power([1.0, 2.0, 4.0], [0.5, 0.0, 8.0], [0.05, 1.0, 0.8])
    assert fit.slope == pytest.approx(2.0)
    assert math.exp(fit.intercept) == pytest.approx(0.5)
    assert fit.slope_se == pytest.approx(0.1 / math.sqrt(2.0 * math.log(2.0) ** 2))


def test_powers_and_points_that_are_lost_in_noise() -> None:
    fit = fit_power([1.0, 2.0, 4.0, 8.0], [8.0, 4.0, 2.0, -0.1], [0.1, 0.1, 0.1, 5.0])
    assert fit.slope == pytest.approx(-1.0)
    assert math.exp(fit.intercept) == pytest.approx(8.0)
    with pytest.raises(ValueError, match="positive at ≥ 2 points"):
        fit_power([1.0, 2.0], [1.0, 0.0])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="same length ≥ 2, got 1 and 1"):
        fit_line([1.0], [1.0])
    with pytest.raises(ValueError, match="two different values"):
        fit_line([1.0, 1.0], [1.0, 2.0])
