"""Intervals of predictions, and residuals, against closed forms and other ways to compute them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kstest, norm

from mlmcgrad import mixed
from mlmcgrad.mixed.result import Fit
from tests.mixed.quadrature import simulate

MODEL = simulate("poisson", 2, 5, groups=60, rows=5, sd=(0.8, 0.4))
NEW = pd.DataFrame({"x": [0.5, -1.0, 0.3], "g": [3, 7, 999]})


@pytest.fixture(scope="module")
def counts() -> Fit:
    return mixed.fit(MODEL.formula, MODEL.data, "poisson", seed=1)


@pytest.fixture(scope="module")
def normal() -> Fit:
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(20), 4)
    x = rng.standard_normal(80)
    y = 1.0 + 0.5 * x + rng.standard_normal(20)[g] + 0.7 * rng.standard_normal(80)
    return mixed.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g}, "gaussian")


def _widths(fit: Fit, effects: mixed.prediction.Effects) -> np.ndarray:
    """Return the standard errors of linear predictors, from their intervals."""
    found = fit.predict(NEW, type="link", effects=effects, interval=0.9)
    middle = fit.predict(NEW, type="link", effects=effects)
    assert np.allclose(found["estimate"], middle)
    assert np.allclose(found["high"] - middle, middle - found["low"])
    ends = fit.predict(NEW, effects=effects, interval=0.9)
    assert np.allclose(ends, fit.family.mean(torch.tensor(found.to_numpy()), fit.theta[-1]))
    return np.asarray((found["high"] - middle) / norm.isf(0.05))


def test_without_random_effects_it_is_that_of_the_fixed_effects(counts: Fit) -> None:
    rows = np.column_stack([np.ones(3), NEW["x"]])
    variance = np.diag(rows @ counts.cov_params().to_numpy() @ rows.T)
    assert np.allclose(_widths(counts, "none"), variance**0.5)


def test_conditional_intervals_are_those_of_henderson(normal: Fit) -> None:
    """The error of prediction of β and b together, by the dense normal law of y and b."""
    assert normal.live is not None
    assert normal.dispersion is not None
    design = normal.live.design
    x, z = design.fixed.numpy(), np.eye(20)[design.effects[0].index.numpy()]
    between, within = normal.sd["g"]["Intercept"] ** 2, normal.dispersion["estimate"] ** 2
    inverse = np.linalg.inv(between * z @ z.T + within * np.eye(80))
    of_beta = np.linalg.inv(x.T @ inverse @ x)
    expected = []
    for value, group in NEW[["x", "g"]].to_numpy().tolist():
        row, own = np.array([1.0, value]), z[:, int(group)] if group < 20 else np.zeros(80)
        gain = between * inverse @ own  # of b in y − Xβ
        rest = row - x.T @ gain
        expected.append(between - between * own @ gain + rest @ of_beta @ rest)
    assert np.allclose(_widths(normal, "conditional"), np.sqrt(expected), rtol=1e-6)


def test_marginal_intervals_are_by_the_delta_method(counts: Fit) -> None:
    """The derivatives in all parameters by differences."""
    slopes = []
    for i in range(len(counts.theta)):
        step = torch.zeros_like(counts.theta)
        step[i] = 1e-5
        ends = [
            replace(counts, theta=counts.theta + sign * step).predict(
                NEW, type="link", effects="marginal"
            )
            for sign in (1.0, -1.0)
        ]
        slopes.append((ends[0] - ends[1]) / 2e-5)
    gradient = np.column_stack(slopes)
    variance = np.diag(gradient @ counts.parameter_covariance.numpy() @ gradient.T)
    assert np.allclose(_widths(counts, "marginal"), variance**0.5, rtol=1e-4)


def test_a_loaded_fit_has_no_conditional_intervals(counts: Fit) -> None:
    loaded = replace(counts, live=None)
    with pytest.raises(ValueError, match="fit it again, or use effects='none'"):
        loaded.predict(NEW, interval=0.9)
    assert loaded.predict(NEW, effects="none", interval=0.9).notna().all().all()


def test_residuals_of_the_right_model_are_standard_normal(counts: Fit) -> None:
    """Those of a model with another mean are not."""
    found = counts.residuals(draws=400)
    assert found.equals(counts.residuals(draws=400))
    assert not found.equals(counts.residuals(draws=400, seed=1))
    assert kstest(found, "norm").pvalue > 1e-3
    assert np.isfinite(counts.residuals(draws=1)).all()  # among two, no rank is 0 or 1
    wrong = replace(counts, theta=counts.theta + torch.tensor([0.6, 0.0, 0.0, 0.0, 0.0]))
    assert kstest(wrong.residuals(draws=400), "norm").pvalue < 1e-5


def test_residuals_of_responses(counts: Fit, normal: Fit) -> None:
    error = MODEL.data["y"] - counts.predict()
    assert np.allclose(counts.residuals("response"), error)
    assert np.allclose(counts.residuals("pearson"), error / counts.predict() ** 0.5)
    assert normal.live is not None
    assert normal.dispersion is not None
    rest = (normal.live.design.y.numpy() - normal.predict()) / normal.dispersion["estimate"]
    assert np.allclose(normal.residuals("pearson"), rest)
    with pytest.raises(ValueError, match="'quantile', 'pearson' or 'response', got 'deviance'"):
        counts.residuals("deviance")  # type: ignore[arg-type]


def test_rows_with_weights(counts: Fit, normal: Fit) -> None:
    """A gaussian row has the variance σ²/weight; rows that count several times have no law."""

    def weighted(fit: Fit, weight: float) -> Fit:
        assert fit.live is not None
        weights = torch.full_like(fit.live.design.y, weight)
        design = replace(fit.live.design, weights=weights)
        return replace(fit, live=replace(fit.live, design=design))

    for fit in (counts, normal):
        found = weighted(fit, 4.0).residuals("pearson")
        assert np.allclose(found, 2.0 * fit.residuals("pearson"))
    with pytest.raises(ValueError, match="a fit with weights cannot simulate responses"):
        weighted(counts, 4.0).simulate()
    exact, plain = weighted(normal, 1e12).simulate(seed=3), normal.simulate(seed=3)
    half = weighted(normal, 4.0).simulate(seed=3)
    assert np.allclose(half - exact, (plain - exact) / 2.0, atol=1e-5)
