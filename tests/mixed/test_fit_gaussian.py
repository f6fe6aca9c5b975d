"""The gaussian family against its closed form, y ~ N(Xβ, ZΣZᵀ + σ²I), and statsmodels' MixedLM."""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
import torch
from torch import Tensor

from mlmcgrad import mixed


def _data() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(50), rng.integers(2, 9, 50))
    x = rng.standard_normal(len(g))
    b = rng.standard_normal((50, 2)) @ np.array([[1.0, 0.4], [0.0, 0.6]])
    y = 1000.0 + 300.0 * (0.5 * x + b[g, 0] + b[g, 1] * x + rng.standard_normal(len(g)))
    return pd.DataFrame({"y": y, "x": x, "g": g})


def _exact(theta: Tensor, data: pd.DataFrame) -> Tensor:
    """The log-likelihood, group by group."""
    factor = torch.zeros(2, 2, dtype=torch.float64)
    factor[[0, 1, 1], [0, 0, 1]] = theta[2:5]
    total = torch.zeros((), dtype=torch.float64)
    for _, rows in data.groupby("g"):
        x = torch.tensor(np.stack([np.ones(len(rows)), rows["x"]], 1))
        covariance = x @ factor @ factor.T @ x.T
        covariance = covariance + (2.0 * theta[5]).exp() * torch.eye(len(rows))
        law = torch.distributions.MultivariateNormal(x @ theta[:2], covariance)
        total = total + law.log_prob(torch.tensor(rows["y"].to_numpy()))
    return total


def test_estimates_errors_and_likelihood_are_those_of_the_closed_form() -> None:
    data = _data()
    fit = mixed.fit("y ~ x + (1 + x | g)", data, "gaussian")
    assert fit.problem is None
    theta = fit.theta.clone().requires_grad_()
    hessian = -torch.autograd.functional.hessian(lambda t: _exact(t, data), fit.theta)
    (score,) = torch.autograd.grad(_exact(theta, data), theta)
    covariance = torch.linalg.inv(hessian)
    errors = covariance.diagonal().sqrt()
    # One Newton step away from the maximum: in standard errors.
    assert float(((covariance @ score) / errors).abs().max()) < 1e-2
    assert torch.allclose(fit.parameter_covariance.diagonal().sqrt(), errors, rtol=0.02)
    value, error = fit.llf, fit.llf_se
    assert abs(value - float(_exact(fit.theta, data))) < 5.0 * error + 1e-6


def test_statsmodels_finds_the_same() -> None:
    data = _data()
    fit = mixed.fit("y ~ x + (1 + x | g)", data, "gaussian")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smf.mixedlm("y ~ x", data, groups="g", re_formula="~x")
        other = model.fit(reml=False, method="lbfgs")
    assert np.abs((fit.params.to_numpy() - other.fe_params) / fit.bse).max() < 1e-2
    assert np.allclose(fit.covariance["g"], other.cov_re, rtol=0.01)
    assert fit.llf == pytest.approx(other.llf, abs=0.05)
    assert fit.dispersion is not None
    assert fit.dispersion["estimate"] == pytest.approx(np.sqrt(other.scale), rel=1e-3)
