"""Predictions, their intervals, simulated responses and residuals."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from mlmcgrad import mixed
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.result import Fit
from tests.mixed.quadrature import simulate
from tests.statistics import mean_is

MODEL = simulate("bernoulli", 1, 5, groups=40, rows=5, sd=(1.5, 0.0))


@pytest.fixture(scope="module")
def fit() -> Fit:
    return mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=1)


def test_random_effects_shrink_and_predictions_use_them(fit: Fit) -> None:
    effects = fit.ranef()
    assert len(effects) == 40
    rate = MODEL.data.groupby("g")["y"].mean().to_numpy()
    assert np.corrcoef(effects["mean"], rate)[0, 1] > 0.9
    assert (effects["sd"] < fit.sd["g"]["Intercept"]).all()
    eta = fit.predict(type="link")
    expected = fit.params["Intercept"] + fit.params["x"] * MODEL.data["x"]
    expected += effects["mean"].to_numpy()[MODEL.data["g"]]
    assert np.allclose(eta, expected)
    assert np.allclose(fit.predict(), 1.0 / (1.0 + np.exp(-eta)))
    new = pd.DataFrame({"x": [0.5, 0.5], "g": [3, 999]})
    known, unknown = fit.predict(new, type="link")
    assert unknown == pytest.approx(fit.params["Intercept"] + 0.5 * fit.params["x"])
    assert known == pytest.approx(unknown + effects["mean"].iloc[3])
    assert np.allclose(fit.predict(new, effects="none", type="link"), unknown)


def test_simulated_responses_look_like_the_data(fit: Fit) -> None:
    """Means of groups vary by the random effects: more than those of one random effect for all."""
    drawn = [fit.simulate(seed=seed) for seed in range(30)]
    assert all(set(y.unique()) <= {0.0, 1.0} for y in drawn)
    spread = [y.groupby(MODEL.data["g"]).mean().std() for y in drawn]
    real = MODEL.data.groupby("g")["y"].mean().std()
    assert min(spread) < real < max(spread)
    assert fit.simulate(seed=3).equals(drawn[3])
    assert len(fit.simulate(pd.DataFrame({"x": [0.0, 1.0], "g": [0, "new"]}))) == 2


def test_unknown_groups_are_drawn_one_by_one() -> None:
    """Null: two rows of a group correlate by σ²/(σ² + s²), rows of different groups not at all.

    False alarm 1e-5. All unknown groups once shared one effect.
    """
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(30), 6)
    y = rng.standard_normal(30)[g] * 2.0 + rng.standard_normal(180)
    fit = mixed.fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, "gaussian")
    groups = [f"new {i}" for i in range(4000)]
    rows = fit.simulate(pd.DataFrame({"g": np.repeat(groups, 2)}), seed=0).to_numpy()
    pairs = rows.reshape(4000, 2) - fit.params["Intercept"]
    assert fit.dispersion is not None
    variance, residual = fit.sd["g"]["Intercept"] ** 2, fit.dispersion["estimate"] ** 2
    one, two = torch.from_numpy(pairs).T
    found = torch.stack([one * two, one * one, one * torch.roll(two, 1)], 1)
    expected = torch.tensor([variance, variance + residual, 0.0], dtype=torch.float64)
    assert mean_is(found, expected)
    without = fit.simulate(pd.DataFrame({"g": [None] * 4000})).to_numpy()
    assert without.std() == pytest.approx((variance + residual) ** 0.5, rel=0.06)
    # A group of the fit is one of the groups, whatever rows ask for it.
    known = fit.simulate(pd.DataFrame({"g": [3, "new", 3]}), seed=2)
    assert abs(known[0] - known[2]) < 6.0 * residual**0.5


def test_a_row_without_a_group_is_a_group_of_its_own() -> None:
    """Without noise of the rows there are as many different responses as groups."""
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(30), 6)
    y = rng.standard_normal(30)[g] + rng.standard_normal(180)
    fit = mixed.fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, "gaussian")
    theta = fit.theta.clone()
    theta[-1] = -30.0
    rows = pd.DataFrame({"g": [*range(30), *[None] * 30, "new", "new"]})
    found = replace(fit, theta=theta).simulate(rows, seed=0)
    assert len(np.unique(found.round(9))) == 61


def test_marginal_means_are_integrals(fit: Fit) -> None:
    """Where they are known: probit and log links; and by simulation for the logit."""
    design = fit.live.design if fit.live else None
    assert design is not None
    eta = fit.predict(effects="none", type="link")
    spread = fit.sd["g"]["Intercept"]
    probit = replace(fit, family=family("bernoulli", "probit"))
    assert np.allclose(probit.predict(effects="marginal"), norm.cdf(eta / (1.0 + spread**2) ** 0.5))
    counts = replace(fit, family=family("poisson"))
    assert np.allclose(counts.predict(effects="marginal"), np.exp(eta + 0.5 * spread**2))
    t = np.linspace(-9.0, 9.0, 4001)[:, None]
    logit = (norm.pdf(t) / (1.0 + np.exp(-eta.to_numpy() - spread * t))).sum(0) * (t[1] - t[0])
    found = fit.predict(effects="marginal")
    assert np.allclose(found, logit, atol=1e-8)
    # The mean over groups is nearer to ½ than the probability of a typical group.
    assert (np.abs(found - 0.5) <= np.abs(fit.predict(effects="none") - 0.5) + 1e-12).all()


def test_predictions_have_names(fit: Fit) -> None:
    assert fit.predict().name == "probability of y"
    assert fit.predict(effects="marginal").name == "marginal probability of y"
    assert fit.predict(type="link").name == "linear predictor"
    assert replace(fit, family=family("poisson")).predict().name == "mean of y"
    success = replace(fit.coding, success="yes")
    assert replace(fit, coding=success).predict().name == "probability of y = yes"
    with pytest.raises(ValueError, match="type must be 'response' or 'link', got 'mean'"):
        fit.predict(type="mean")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="'conditional', 'marginal' or 'none', got 'fixed'"):
        fit.predict(effects="fixed")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="interval must lie strictly between 0 and 1, got 95"):
        fit.predict(interval=95)
