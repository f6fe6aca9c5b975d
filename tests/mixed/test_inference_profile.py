"""Profile intervals and tests of dropped terms, against likelihoods by quadrature."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize
from scipy.stats import norm

from mlmcgrad import mixed
from mlmcgrad.mixed.inference import Profile
from mlmcgrad.mixed.result import Fit
from tests.mixed.quadrature import Floats, Model, simulate

MODEL = simulate("bernoulli", 1, 5, groups=40, rows=5, sd=(1.5, 0.0))
NAMES = ["Intercept", "x", "sd(Intercept | g)"]


def _fit(model: Model) -> Fit:
    return mixed.fit(model.formula, model.data, "bernoulli", seed=1)


@pytest.fixture(scope="module")
def fit() -> Fit:
    return _fit(MODEL)


def _root(model: Model, theta: Floats, fixed: int, value: float) -> float:
    """Return the root of the likelihood-ratio statistic of θ[fixed] = value, by quadrature."""
    near = theta.copy()
    near[2] = max(near[2], 0.3)  # where the nodes are
    free = [i for i in range(3) if i != fixed]

    def loss(rest: Floats) -> float:
        at = np.full(3, value)
        at[free] = rest
        return -model.log_likelihood(at, near, nodes=30)

    constrained = optimize.minimize(loss, theta[free], method="BFGS", options={"gtol": 1e-2})
    top = model.log_likelihood(theta, near, nodes=30)
    return math.sqrt(max(2.0 * (top + float(constrained.fun)), 0.0))


def test_a_profile_interval_ends_where_the_test_rejects(fit: Fit) -> None:
    """At each end the likelihood ratio is the quantile; Wald's interval of σ ends elsewhere."""
    for alpha, names in ((0.05, NAMES), (0.3, NAMES[:1])):
        ends = fit.conf_int(alpha, method="profile", parameters=names)
        assert ends.index.tolist() == names
        for name, (low, high) in zip(names, ends.to_numpy().tolist(), strict=True):
            assert low < fit.theta[NAMES.index(name)] < high
            for end in (low, high):
                root = _root(MODEL, fit.theta.numpy(), NAMES.index(name), end)
                assert root == pytest.approx(norm.isf(alpha / 2.0), abs=0.03)
    wald = fit.conf_int(parameters=NAMES[2:])
    roots = [_root(MODEL, fit.theta.numpy(), 2, end) for end in wald.to_numpy()[0].tolist()]
    assert max(abs(root - 1.96) for root in roots) > 0.1


@pytest.mark.parametrize(("seed", "sd"), [(1, 0.0), (2, 0.3155), (3, 0.947)])
def test_a_profile_interval_starts_at_0_if_0_is_not_rejected(seed: int, sd: float) -> None:
    """Groups hardly differ; where the estimate is 0, its logarithm has no slope."""
    model = simulate("bernoulli", 1, seed, groups=40, rows=5, sd=(0.4, 0.0))
    fit = _fit(model)
    assert fit.sd["g"]["Intercept"] == pytest.approx(sd, abs=0.005)
    ((low, high),) = fit.conf_int(method="profile", parameters=NAMES[2:]).to_numpy().tolist()
    assert (low == 0.0) == (_root(model, fit.theta.numpy(), 2, 0.0) < 1.96) == (seed < 3)
    if low > 0.0:
        assert _root(model, fit.theta.numpy(), 2, low) == pytest.approx(1.96, abs=0.03)
    assert _root(model, fit.theta.numpy(), 2, high) == pytest.approx(1.96, abs=0.03)


def test_a_profile_interval_of_a_correlation() -> None:
    """With many counts it is near Wald's; where a standard deviation is 0 there is none."""
    model = simulate("poisson", 2, 5, groups=40, rows=5, sd=(0.8, 0.8), beta=(2.0, 0.8))
    fit, name = mixed.fit(model.formula, model.data, "poisson"), "cor(Intercept, x | g)"
    profile, wald = (
        np.arctanh(fit.conf_int(method=method, parameters=name).to_numpy()[0])
        for method in ("profile", "wald")
    )
    assert profile == pytest.approx(wald, abs=0.2 * (wald[1] - wald[0]))
    theta = fit.theta.clone()
    theta[3:5] = 0.0
    none = replace(fit, theta=theta).conf_int(method="profile", parameters=name)
    assert none.isna().all().all()


def test_terms_are_dropped_one_by_one(fit: Fit) -> None:
    found = fit.drop1()
    assert found.index.tolist() == ["<none>", "x", "(1 | g)"]
    assert found["df"].tolist() == [3, 2, 2]
    assert found["dropped"].tolist() == [0, 1, 1]
    assert found["law"].tolist() == ["", "χ²(1)", "½χ²(0) + ½χ²(1)"]
    numbers = found[["statistic", "p_value", "llf", "aic"]].to_numpy(float)
    for row, fixed, half in zip(numbers[1:].tolist(), (1, 2), (1.0, 0.5), strict=True):
        statistic, p_value, llf, aic = row
        exact = _root(MODEL, fit.theta.numpy(), fixed, 0.0) ** 2
        assert statistic == pytest.approx(exact, rel=0.01, abs=0.05)
        assert p_value == pytest.approx(half * 2.0 * norm.sf(exact**0.5), 0.1)
        assert llf == pytest.approx(fit.llf - exact / 2.0, abs=0.05)
        assert aic == pytest.approx(4.0 - 2.0 * llf)


def test_without_random_effects_the_likelihood_is_known(fit: Fit) -> None:
    """That of a logistic regression, so the loss has the error of one log-likelihood."""
    loss, error, theta = Profile(fit).zero(torch.tensor([2]))
    exact = _root(MODEL, fit.theta.numpy(), 2, 0.0) ** 2
    assert abs(loss - exact) < 5.0 * error + 0.01
    assert error == pytest.approx(2.0 * fit.llf_se, rel=0.5)
    assert theta[2] == 0.0


def test_models_in_a_table_are_compared_with_the_next_smaller_one(fit: Fit) -> None:
    null = mixed.fit("y ~ 1 + (1 | g)", MODEL.data, "bernoulli")
    table, test = mixed.anova(fit, null), fit.compare(null)
    assert table.index.tolist() == [null.formula, fit.formula]
    assert table.equals(mixed.anova(null, fit))
    assert table["df"].tolist() == [2, 3]
    assert table["added"].tolist() == [0, 1]
    assert table["llf"].tolist() == [null.llf, fit.llf]
    assert table["bic"].tolist() == [null.bic, fit.bic]
    assert table["statistic"].isna().tolist() == [True, False]
    assert table["statistic"].iloc[1] == test.statistic
    assert table["p_value"].iloc[1] == test.p_value
    with pytest.raises(ValueError, match="anova compares two or more fits, got 1"):
        mixed.anova(fit)


def test_what_has_no_interval_is_said(fit: Fit) -> None:
    with pytest.raises(ValueError, match=r"or names among 'Intercept', .*, got 'z'"):
        fit.conf_int(parameters="z")
    with pytest.raises(ValueError, match="method must be 'wald' or 'profile', got 'exact'"):
        fit.conf_int(method="exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a loaded fit has no data for a profile; fit it again"):
        replace(fit, live=None).conf_int(method="profile")
    nothing = torch.full_like(fit.parameter_covariance, math.nan)
    with pytest.raises(ValueError, match="must be 'wald', because the search did not converge"):
        replace(fit, parameter_covariance=nothing).conf_int(method="profile")
