"""Intervals and tests against quadrature, and the laws of likelihood ratios."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

import mlmcgrad as mg
from mlmcgrad import mixed
from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.inference import _bootstrap, _law
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.result import Factor, Fit
from tests.mixed.quadrature import simulate

MODEL = simulate("bernoulli", 1, 5, groups=40, rows=5, sd=(1.5, 0.0))


@pytest.fixture(scope="module")
def fit() -> Fit:
    return mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=1)


def test_a_test_of_nested_models(fit: Fit) -> None:
    """By quadrature without noise; sampled, with far less than each of the log-likelihoods."""
    null = mixed.fit("y ~ 1 + (1 | g)", MODEL.data, "bernoulli")
    found = fit.compare(null)
    exact = 2.0 * (
        MODEL.log_likelihood(fit.theta.numpy(), fit.theta.numpy())
        - MODEL.log_likelihood(np.array([null.theta[0], 0.0, null.theta[1]]), fit.theta.numpy())
    )
    assert found.statistic == pytest.approx(exact, abs=1e-4)
    levels = mg.MLMCSum(math.inf, 2**-1.5, assignment="balanced")
    fits = [
        mixed.fit(formula, MODEL.data, "bernoulli", estimator=levels)
        for formula in (MODEL.formula, "y ~ 1 + (1 | g)")
    ]
    sampled = fits[0].compare(fits[1])
    assert sampled.statistic == pytest.approx(exact, abs=6.0 * sampled.error + 1e-3)
    assert 0.0 < sampled.error < fits[0].llf_se * 2.0
    assert (found.degrees, null.compare(fit)) == (1, found)
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


def test_parameters_of_several_factors(fit: Fit) -> None:
    """Names, estimates and errors of all, of a model with correlated and separate effects."""
    right = "x + (1 + x | g) + (1 | h) + (0 + z | h)"
    plain = replace(_as_fitted(fit, right), family=family("gaussian"))
    assert plain.live is not None
    design = plain.live.design
    theta = torch.tensor([0.1, 0.2, 1.5, -0.6, 0.8, 0.7, 0.4, 0.3], dtype=torch.float64)
    nothing = torch.zeros(1, 2, dtype=torch.float64)
    factors = tuple(Factor(e.factor, ("a",), e.terms, nothing, nothing) for e in design.effects)
    deviations = torch.linspace(0.05, 0.12, 8, dtype=torch.float64)
    model = replace(
        plain,
        layout=Layout.of(design, plain.family),
        theta=theta,
        factors=factors,
        names=design.names,
        parameter_covariance=torch.diag(deviations.square()),
    )
    found = model.tidy()
    assert found["group"].tolist() == ["", "", "g", "g", "g", "h", "h", ""]
    assert found["term"].tolist()[2:] == [
        *("sd(Intercept)", "sd(x)", "cor(Intercept, x)", "sd(Intercept)", "sd(z)", "sigma")
    ]
    estimates = [0.1, 0.2, 1.5, 1.0, -0.6, 0.7, 0.4, math.exp(0.3)]
    assert np.allclose(found["estimate"], estimates)
    errors = deviations.numpy()
    slope = np.hypot(0.6 * errors[3], 0.8 * errors[4])
    correlation = np.hypot(0.64 * errors[3], 0.48 * errors[4])
    expected = [*errors[:3], slope, correlation, *errors[5:7], math.exp(0.3) * errors[7]]
    assert np.allclose(found["std_error"], expected)
    ends = model.conf_int(0.1, parameters="all").to_numpy()
    width = norm.isf(0.05)
    assert np.allclose(
        ends[:2], found["estimate"].to_numpy()[:2, None] + width * np.outer(errors[:2], [-1, 1])
    )
    assert np.allclose(np.log(ends[2] / 1.5), width * errors[2] / 1.5 * np.array([-1, 1]))
    assert np.allclose(np.log(ends[7]) - 0.3, width * errors[7] * np.array([-1, 1]))
    ends = np.arctanh(ends[4]) - np.arctanh(-0.6)
    assert np.allclose(ends, width * correlation / 0.64 * np.array([-1, 1]))
    assert len(model.conf_int(parameters="fixed")) == 2
    assert model.conf_int(parameters="random").index.tolist()[2] == "cor(Intercept, x | g)"


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


def test_the_p_value_of_a_bootstrap_counts_the_data_too(fit: Fit) -> None:
    """Of 4 statistics 0, 1, 2, 3 two are at least 2; data without a fit are left out."""
    law, p_value = _bootstrap(fit, 2.0, lambda y, seed: float(seed), 4, 0)
    assert (law, p_value) == ("4 simulated data sets", 3 / 5)

    def again(y: torch.Tensor, seed: int) -> float:
        if seed == 3:
            raise FloatingPointError
        return float(y.sum())

    law, p_value = _bootstrap(fit, math.inf, again, 4, 0)
    assert (law, p_value) == ("3 simulated data sets", 1 / 4)


def test_a_zero_in_the_smaller_model_has_no_law(fit: Fit) -> None:
    small, large = _as_fitted(fit, X), _as_fitted(fit, "x + (1 + x | g)")
    theta = small.theta.clone()
    theta[small.layout.diagonal] = 0.0
    found = large.compare(replace(small, theta=theta))
    assert "a standard deviation of the smaller model is 0" in found.law
    assert math.isnan(found.p_value)
