"""Fits against the maximum of the exact likelihood, by quadrature written without the library.

Of each case the exact maximum is found once, from a fit; its own check is that the quadrature does
not change with more nodes. Ten seeds of the fit: every estimate within 0.10 standard errors of the
maximum, and 0.02 units of log-likelihood. Monte Carlo errors are below 0.02 standard errors, so a
deviation of 0.10 is one of more than 5 of them, 6e-7 for an estimate; the seeds are fixed, so the
verdict is too.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest

from mlmcgrad import Average, mixed
from tests.mixed.quadrature import Floats, Model, simulate

QUADRATURE = 2e-3  # standard errors by which the search for the exact maximum may be off
CASES = {
    "bernoulli, σ = 4": ("bernoulli", 1, {"sd": (4.0, 0.0)}),
    "bernoulli, 2 effects": ("bernoulli", 2, {"sd": (2.5, 1.0), "groups": 60}),
    "binomial, σ = 3": ("binomial", 1, {"sd": (3.0, 0.0), "rows": 5}),
    "poisson, σ = 1": ("poisson", 1, {"sd": (1.0, 0.0)}),
    "poisson, 2 effects": ("poisson", 2, {"sd": (0.7, 0.4), "groups": 80}),
}


@cache
def exact(case: str) -> tuple[Model, Floats, Floats, float]:
    family, effects, options = CASES[case]
    model = simulate(family, effects, seed=1, **options)  # type: ignore[arg-type]
    near = mixed.fit(model.formula, model.data, family, seed=99).theta.numpy()
    theta, value = model.maximum(near)
    finer = model.log_likelihood(theta, near, 120 if effects == 1 else 32)
    assert abs(finer - value) < 1e-3, "the quadrature itself"
    return model, theta, near, value


@pytest.mark.parametrize("case", CASES)
def test_ten_seeds_find_the_exact_maximum(case: str) -> None:
    model, theta, near, value = exact(case)
    covered, squares = 0, []
    for seed in range(10):
        fit = mixed.fit(model.formula, model.data, model.family, seed=seed)
        assert fit.problem is None
        errors = np.sqrt(np.diag(fit.parameter_covariance))
        assert (np.abs(fit.theta.numpy() - theta) <= 0.10 * errors).all(), seed
        here = model.log_likelihood(fit.theta.numpy(), near)
        assert value - here <= 0.02
        found, error = fit.llf, fit.llf_se
        assert abs(found - here) <= 6.0 * error + 1e-3
        distance = fit.theta.numpy() - theta
        assert fit.certificate is not None
        covered += int((np.abs(distance) <= fit.certificate.bound * errors).all())
        variance = np.diag(fit.monte_carlo_covariance) + (QUADRATURE * errors) ** 2
        squares.append(distance**2 / variance)
    # Bounds of level 95 % fail 6 times of 10 with a probability below 3e-6.
    assert covered >= 5
    # The mean of ten F(1, ν) with ν ≥ 26 exceeds 7 with a probability below 1e-6.
    assert (np.mean(squares, axis=0) <= 7.0).all()


@pytest.mark.filterwarnings("ignore::mlmcgrad.mixed.ConvergenceWarning")
@pytest.mark.parametrize("case", ["bernoulli, σ = 4", "bernoulli, 2 effects"])
def test_without_levels_it_fails(case: str) -> None:
    """Four candidates and no levels: the bias is many times what is allowed above."""
    model, theta, _, _ = exact(case)
    options: dict[str, Any] = {"estimator": Average(1), "candidates": 4, "iterations": 300}
    fit = mixed.fit(model.formula, model.data, model.family, **options)
    errors = np.sqrt(np.diag(fit.parameter_covariance))
    assert (np.abs(fit.theta.numpy() - theta) > 0.10 * errors).any()
