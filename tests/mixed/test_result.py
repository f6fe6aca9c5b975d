"""What a fit says and does: names, table, predictions, tests, files, figure."""

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chi2, norm

from mlmcgrad import mixed
from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.result import Fit, _law
from tests.mixed.quadrature import simulate
from tests.statistics import mean_is

MODEL = simulate("bernoulli", 1, 5, groups=40, rows=5, sd=(1.5, 0.0))


@pytest.fixture(scope="module")
def fit() -> Fit:
    return mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=1)


def test_its_numbers_have_names(fit: Fit) -> None:
    assert fit.params.index.tolist() == ["Intercept", "x"]
    assert (fit.monte_carlo_errors < 0.02 * fit.bse).all()
    assert list(fit.covariance) == ["g"]
    sd = fit.sd["g"]["Intercept"]
    assert fit.covariance["g"].loc["Intercept", "Intercept"] == pytest.approx(sd**2)
    low, high = fit.sd_intervals["g"].to_numpy()[0].tolist()
    assert low < sd < high
    assert low * high == pytest.approx(sd**2)
    assert fit.dispersion is None
    assert fit.aic == pytest.approx(-2.0 * fit.llf + 6.0)
    assert fit.bic == pytest.approx(-2.0 * fit.llf + 3.0 * np.log(200))


def test_names_of_statsmodels(fit: Fit) -> None:
    assert fit.converged
    assert fit.nobs == 200
    assert isinstance(fit.llf, float)
    assert 0.0 < fit.llf_se < 0.1
    covariance = fit.cov_params()
    assert covariance.index.tolist() == covariance.columns.tolist() == ["Intercept", "x"]
    assert np.allclose(np.sqrt(np.diag(covariance)), fit.bse)
    assert np.allclose(fit.tvalues, fit.params / fit.bse)
    assert np.allclose(fit.pvalues, 2.0 * norm.sf(fit.tvalues.abs()))
    for alpha in (0.05, 0.3):
        ends = fit.conf_int(alpha)
        assert list(ends) == [0, 1]
        assert np.allclose((ends[0] + ends[1]) / 2.0, fit.params)
        assert np.allclose(ends[1] - ends[0], 2.0 * norm.isf(alpha / 2.0) * fit.bse)
    assert fit.conf_int().equals(fit.conf_int(0.05))
    for alpha in (0.0, 1.0, 5.0):
        with pytest.raises(ValueError, match="alpha must lie strictly between 0 and 1"):
            fit.conf_int(alpha)


def test_a_notebook_shows_its_table_with_names_escaped(fit: Fit) -> None:
    factor = replace(fit.factors[0], name="<script>alert('g')</script>")
    strange = replace(fit, factors=(factor,), names=("Intercept", "a<b & c"))
    shown = strange._repr_html_()
    assert shown == strange.summary()._repr_html_()
    assert shown.startswith("<pre>")
    assert "&lt;script&gt;" in shown
    assert "a&lt;b &amp; c" in shown
    assert "<" not in shown.removeprefix("<pre>").removesuffix("</pre>")
    assert repr(fit.summary()) == str(fit.summary()) == str(fit)


def test_its_table_says_everything(fit: Fit) -> None:
    text = str(fit)
    for part in ("Intercept", "std. error", "MC error", "95 % interval", "Certificate holds", "sd"):
        assert part in text
    assert f"{fit.params['x']:.4f}"[:5] in text
    assert "PROBLEM" not in text


def test_random_effects_shrink_and_predictions_use_them(fit: Fit) -> None:
    effects = fit.random_effects()["g"]
    assert len(effects) == 40
    rate = MODEL.data.groupby("g")["y"].mean().to_numpy()
    assert np.corrcoef(effects["Intercept"], rate)[0, 1] > 0.9
    assert (effects["Intercept sd"] < fit.sd["g"]["Intercept"]).all()
    eta = fit.predict(linear=True)
    expected = fit.params["Intercept"] + fit.params["x"] * MODEL.data["x"]
    expected += effects["Intercept"].to_numpy()[MODEL.data["g"]]
    assert np.allclose(eta, expected)
    assert np.allclose(fit.predict(), 1.0 / (1.0 + np.exp(-eta)))
    new = pd.DataFrame({"x": [0.5, 0.5], "g": [3, 999]})
    known, unknown = fit.predict(new, linear=True)
    assert unknown == pytest.approx(fit.params["Intercept"] + 0.5 * fit.params["x"])
    assert known == pytest.approx(unknown + effects["Intercept"].iloc[3])
    assert np.allclose(fit.predict(new, type="fixed", linear=True), unknown)


def test_simulated_responses_look_like_the_data(fit: Fit) -> None:
    """Means of groups vary by the random effects: more than those of one random effect for all."""
    drawn = [fit.simulate(seed=seed) for seed in range(30)]
    assert all(set(y.unique()) <= {0.0, 1.0} for y in drawn)
    spread = [y.groupby(MODEL.data["g"]).mean().std() for y in drawn]
    real = MODEL.data.groupby("g")["y"].mean().std()
    assert min(spread) < real < max(spread)
    assert fit.simulate(seed=3).equals(drawn[3])
    assert len(fit.simulate(pd.DataFrame({"x": [0.0, 1.0], "g": [0, "new"]}))) == 2


def test_a_file_keeps_the_fit(fit: Fit, tmp_path: Path) -> None:
    path = tmp_path / "some" / "fit.json"
    fit.save(path)
    loaded = mixed.load(path)
    assert str(loaded) == str(fit)
    assert torch.equal(loaded.theta, fit.theta)
    new = MODEL.data.head(3)[["x", "g"]]
    assert loaded.predict(new).equals(fit.predict(new))
    assert loaded.certificate is not None
    assert loaded.certificate.holds
    with pytest.raises(ValueError, match="has no data of its own"):
        loaded.simulate()
    null = mixed.fit("y ~ 1 + (1 | g)", MODEL.data, "bernoulli")
    with pytest.raises(ValueError, match="fit it again"):
        loaded.compare(null)


def test_numbers_that_are_not_there_are_null(fit: Fit, tmp_path: Path) -> None:
    """A search that ended early has no errors; strict readers of JSON know no NaN."""
    nothing, path = torch.full_like(fit.parameter_covariance, math.nan), tmp_path / "fit.json"
    early = replace(fit, parameter_covariance=nothing, llf=math.nan, llf_se=math.nan)
    early.save(path)
    assert "NaN" not in path.read_text(encoding="utf-8")
    loaded = mixed.load(path)
    assert bool(loaded.parameter_covariance.isnan().all())
    assert math.isnan(loaded.llf)
    assert torch.equal(loaded.theta, fit.theta)


@pytest.mark.parametrize(
    "damage", ["", "{}", "[1]", "half", '{"format": "mlmcgrad mixed model 3"}']
)
def test_a_damaged_file_is_named(damage: str, fit: Fit, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    fit.save(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: len(text) // 2] if damage == "half" else damage, encoding="utf-8")
    with pytest.raises(ValueError, match=r"fit\.json.* is not a fit"):
        mixed.load(path)


def test_a_changed_file_is_refused_as_a_whole(fit: Fit, tmp_path: Path) -> None:
    """Each change is one clear error: values of other types, rows too many, parts left out."""
    path = tmp_path / "fit.json"
    fit.save(path)
    good = json.loads(path.read_text(encoding="utf-8"))
    random = Random(0)
    junk: list[Any] = [None, 0, -1, 10**400, math.nan, "", "x", [], {}, [[]], True, {"a": [1]}]
    for _ in range(300):
        changed = json.loads(json.dumps(good))
        part: Any = changed
        keys: Any = list(changed)
        while True:
            key = random.choice(keys)
            inner = part[key]
            if not isinstance(inner, (dict, list)) or not inner or random.random() < 0.3:
                break
            part, keys = inner, list(inner) if isinstance(inner, dict) else range(len(inner))
        if random.random() < 0.3:
            del part[key]
        else:
            part[key] = random.choice([value for value in junk if value != part[key]])
        path.write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(ValueError, match=r"fit\.json.* is not a fit .*, or is damaged: its"):
            mixed.load(path)
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"fit\.json.* is not a fit"):
        mixed.load(path)
    path.write_text(json.dumps(good, indent=3, sort_keys=True), encoding="utf-8")
    assert str(mixed.load(path)) == str(fit)


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


def test_marginal_means_are_integrals(fit: Fit) -> None:
    """Where they are known: probit and log links; and by simulation for the logit."""
    design = fit.live.design if fit.live else None
    assert design is not None
    eta = fit.predict(type="fixed", linear=True)
    spread = fit.sd["g"]["Intercept"]
    probit = replace(fit, family=family("bernoulli", "probit"))
    assert np.allclose(probit.predict(type="marginal"), norm.cdf(eta / (1.0 + spread**2) ** 0.5))
    counts = replace(fit, family=family("poisson"))
    assert np.allclose(counts.predict(type="marginal"), np.exp(eta + 0.5 * spread**2))
    t = np.linspace(-9.0, 9.0, 4001)[:, None]
    logit = (norm.pdf(t) / (1.0 + np.exp(-eta.to_numpy() - spread * t))).sum(0) * (t[1] - t[0])
    found = fit.predict(type="marginal")
    assert np.allclose(found, logit, atol=1e-8)
    # The mean over groups is nearer to ½ than the probability of a typical group.
    assert (np.abs(found - 0.5) <= np.abs(fit.predict(type="fixed") - 0.5) + 1e-12).all()


def test_predictions_have_names(fit: Fit) -> None:
    assert fit.predict().name == "probability of y"
    assert fit.predict(type="marginal").name == "marginal probability of y"
    assert fit.predict(linear=True).name == "linear predictor"
    assert replace(fit, family=family("poisson")).predict().name == "mean of y"
    success = replace(fit.coding, success="yes")
    assert replace(fit, coding=success).predict().name == "probability of y = yes"
    with pytest.raises(ValueError, match="type must be conditional, marginal or fixed, got 'mean'"):
        fit.predict(type="mean")  # type: ignore[arg-type]


def test_intervals_that_are_not_estimable_are_nan(fit: Fit) -> None:
    """Near 0 the logarithm of a standard deviation says nothing."""
    theta = fit.theta.clone()
    theta[2] = 1e-4
    assert fit.sd_intervals["g"].notna().all().all()
    near = replace(fit, theta=theta)
    assert near.sd_intervals["g"].isna().all().all()
    assert "–" in str(near)


def test_a_figure(fit: Fit, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "fit.png"
    fit.plot().savefig(path)
    assert path.stat().st_size > 10_000
    names = [axes.get_title() for axes in fit.plot().axes]
    assert names[:3] == ["Intercept", "x", "sd(Intercept)"]
