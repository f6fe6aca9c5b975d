"""Intervals and tests against quadrature, and the laws of likelihood ratios."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from mlmcgrad import mixed
from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.inference import _law
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.result import Fit
from tests.mixed.quadrature import simulate

MODEL = simulate("bernoulli", 1, 5, groups=40, rows=5, sd=(1.5, 0.0))


@pytest.fixture(scope="module")
def fit() -> Fit:
    return mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=1)


def test_a_test_of_nested_models(fit: Fit) -> None:
    """The difference has far less noise than each of the log-likelihoods."""
    null = mixed.fit("y ~ 1 + (1 | g)", MODEL.data, "bernoulli")
    found = fit.compare(null)
    exact = 2.0 * (
        MODEL.log_likelihood(fit.theta.numpy(), fit.theta.numpy())
        - MODEL.log_likelihood(np.array([null.theta[0], 0.0, null.theta[1]]), fit.theta.numpy())
    )
    assert found.statistic == pytest.approx(exact, abs=6.0 * found.error + 1e-3)
    assert (found.degrees, null.compare(fit)) == (1, found)
    assert found.error < fit.llf_se * 2.0
    assert found.law == "χ²(1)"
    assert "1 more parameters; p = " in str(found)
    with pytest.raises(ValueError, match="more or fewer parameters"):
        fit.compare(fit)
    with pytest.raises(ValueError, match="same responses"):
        fit.compare(mixed.fit("y ~ 1 + (1 | g)", MODEL.data.head(150), "bernoulli"))


X = "x + (1 | g)"


@pytest.mark.parametrize(
    ("small", "large", "law"),
    [
        ("1 + (1 | g)", X, "χ²(1)"),
        (X, "x + (1 + x | g)", "½χ²(1) + ½χ²(2)"),
        (X, "x + (1 | g) + (0 + x | g)", "½χ²(0) + ½χ²(1)"),
        ("x + (0 + x | g)", "x + (1 + x | g)", "½χ²(1) + ½χ²(2)"),
        ("x + (1 | g) + (0 + x | g)", "x + (1 + x | g)", "χ²(1)"),
        (X, "x + (1 | g) + (1 | h)", "½χ²(0) + ½χ²(1)"),
        ("1 + (1 | g)", "x + (1 | g) + (1 | h)", "½χ²(1) + ½χ²(2)"),
        (X, "x + (1 + x + z | g)", "2 variances are fixed at 0"),
        (X, "x + (1 | g) + (1 + x | h)", "2 variances are fixed at 0"),
        (X, "z + (1 + z | g)", "not nested"),
        (X, "x + (0 + x + z | g)", "not nested"),
        (X, "x + (1 + x | h)", "not nested"),
        (X, "x + offset(z) + (1 + x | g)", "not nested"),
        ("x + z + (1 | g)", "x * z + (1 | g)", "χ²(1)"),
        ("x + (1 + x | g)", "x + (1 + I(2 * x - 1) + z | g)", "½χ²(2) + ½χ²(3)"),
    ],
)
def test_the_law_of_a_likelihood_ratio(fit: Fit, small: str, large: str, law: str) -> None:
    found = _as_fitted(fit, large).compare(_as_fitted(fit, small))
    assert found.law.startswith(law) if law[0] in "½χ2" else law in found.law
    assert math.isnan(found.p_value) == (law[0] not in "½χ")
    assert ("no p-value" in str(found)) == math.isnan(found.p_value)


def _as_fitted(fit: Fit, right: str) -> Fit:
    """A fit of another formula, but for its numbers."""
    rng = np.random.default_rng(0)
    data = MODEL.data.assign(z=rng.standard_normal(200), h=rng.integers(0, 9, 200))
    design = build(f"y ~ {right}", data)
    layout = Layout.of(design, fit.family)
    theta = torch.ones(layout.size, dtype=torch.float64)
    assert fit.live is not None
    return replace(fit, layout=layout, theta=theta, live=replace(fit.live, design=design))


def test_p_values_of_mixtures() -> None:
    t, tails = 3.2, [chi2.sf(3.2, k) for k in (1, 2, 3)]
    law, p_value = _law(t, 1, 1)
    assert law == "½χ²(0) + ½χ²(1)"
    assert p_value == pytest.approx(0.5 * tails[0])
    assert _law(t, 3, 1)[1] == pytest.approx(0.5 * (tails[1] + tails[2]))
    assert _law(t, 2, 0)[1] == pytest.approx(tails[1])
    assert _law(0.0, 1, 1)[1] == _law(-0.1, 1, 1)[1] == 1.0
    assert math.isnan(_law(t, 2, 2)[1])


def test_poisson_is_on_the_boundary_of_negative_binomial(fit: Fit) -> None:
    poisson = replace(_as_fitted(fit, X), family=family("poisson"))
    design = poisson.live.design if poisson.live else None
    assert design is not None
    larger = family("negative_binomial")
    layout = Layout.of(design, larger)
    theta = torch.ones(layout.size, dtype=torch.float64)
    other = replace(poisson, family=larger, layout=layout, theta=theta)
    assert other.compare(poisson).law == "½χ²(0) + ½χ²(1)"
    assert "not nested" in other.compare(_as_fitted(fit, X)).law


def test_simulated_p_values(fit: Fit) -> None:
    """Of an effect that is there: no drawn statistic is as large."""
    null = mixed.fit("y ~ 1 + (1 | g)", MODEL.data, "bernoulli")
    found = fit.compare(null, simulate=4)
    assert found.p_value == pytest.approx(1 / 5)
    assert found == fit.compare(null, simulate=4)
    assert found.law == "4 simulated data sets"
    other = _as_fitted(fit, "z + (1 + z | g)")
    with pytest.raises(ValueError, match="simulate must be 0, because the models are not nested"):
        other.compare(fit, simulate=4)


def test_a_zero_in_the_smaller_model_has_no_law(fit: Fit) -> None:
    small, large = _as_fitted(fit, X), _as_fitted(fit, "x + (1 + x | g)")
    theta = small.theta.clone()
    theta[small.layout.diagonal] = 0.0
    found = large.compare(replace(small, theta=theta))
    assert "a standard deviation of the smaller model is 0" in found.law
    assert math.isnan(found.p_value)
