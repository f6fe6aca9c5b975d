"""What a fit says and does, beside its numbers."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mlmcgrad import mixed
from mlmcgrad.mixed import fitting
from mlmcgrad.mixed.result import Fit, Step
from tests.mixed.quadrature import simulate

MODEL = simulate("bernoulli", 1, 5, groups=40, rows=5, sd=(1.5, 0.0))


@pytest.fixture(scope="module")
def fit() -> Fit:
    return mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=1)


def test_the_same_seed_gives_the_same_fit(fit: Fit) -> None:
    again = mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=1)
    other = mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=2)
    assert torch.equal(again.theta, fit.theta)
    assert not torch.equal(other.theta, fit.theta)


def test_the_order_of_rows_and_units_of_columns_do_not_matter(fit: Fit) -> None:
    """Up to the noise, of which there are 0.02 standard errors."""
    data = MODEL.data.sample(frac=1.0, random_state=0)
    data["x"] = 1000.0 * data["x"] + 1e5
    moved = mixed.fit(MODEL.formula, data, "bernoulli", seed=1)
    slope = 1000.0 * moved.fixed["x"]
    assert slope == pytest.approx(fit.fixed["x"], abs=0.1 * fit.standard_errors["x"])
    assert moved.sd["g"]["Intercept"] == pytest.approx(fit.sd["g"]["Intercept"], rel=0.02)
    assert moved.log_likelihood[0] == pytest.approx(fit.log_likelihood[0], abs=0.02)


def test_its_numbers_have_names(fit: Fit) -> None:
    assert fit.fixed.index.tolist() == ["Intercept", "x"]
    assert (fit.monte_carlo_errors < 0.02 * fit.standard_errors).all()
    assert list(fit.covariance) == ["g"]
    sd = fit.sd["g"]["Intercept"]
    assert fit.covariance["g"].loc["Intercept", "Intercept"] == pytest.approx(sd**2)
    low, high = fit.sd_intervals["g"].to_numpy()[0].tolist()
    assert low < sd < high
    assert low * high == pytest.approx(sd**2)
    assert fit.dispersion is None
    assert fit.aic == pytest.approx(-2.0 * fit.log_likelihood[0] + 6.0)
    assert fit.bic == pytest.approx(-2.0 * fit.log_likelihood[0] + 3.0 * np.log(200))


def test_its_table_says_everything(fit: Fit) -> None:
    text = str(fit)
    for part in ("Intercept", "std. error", "MC error", "95 % interval", "Certificate holds", "sd"):
        assert part in text
    assert f"{fit.fixed['x']:.4f}"[:5] in text
    assert "PROBLEM" not in text


def test_random_effects_shrink_and_predictions_use_them(fit: Fit) -> None:
    effects = fit.random_effects()["g"]
    assert len(effects) == 40
    rate = MODEL.data.groupby("g")["y"].mean().to_numpy()
    assert np.corrcoef(effects["Intercept"], rate)[0, 1] > 0.9
    assert (effects["Intercept sd"] < fit.sd["g"]["Intercept"]).all()
    eta = fit.predict(linear=True)
    expected = fit.fixed["Intercept"] + fit.fixed["x"] * MODEL.data["x"]
    expected += effects["Intercept"].to_numpy()[MODEL.data["g"]]
    assert np.allclose(eta, expected)
    assert np.allclose(fit.predict(), 1.0 / (1.0 + np.exp(-eta)))
    new = pd.DataFrame({"x": [0.5, 0.5], "g": [3, 999]})
    known, unknown = fit.predict(new, linear=True)
    assert unknown == pytest.approx(fit.fixed["Intercept"] + 0.5 * fit.fixed["x"])
    assert known == pytest.approx(unknown + effects["Intercept"].iloc[3])
    assert np.allclose(fit.predict(new, random=False), fit.predict(new, random=False).iloc[0])


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
    early = replace(fit, parameter_covariance=nothing, log_likelihood=(math.nan, math.nan))
    early.save(path)
    assert "NaN" not in path.read_text(encoding="utf-8")
    loaded = mixed.load(path)
    assert bool(loaded.parameter_covariance.isnan().all())
    assert all(map(math.isnan, loaded.log_likelihood))
    assert torch.equal(loaded.theta, fit.theta)


@pytest.mark.parametrize(
    "damage", ["", "{}", "[1]", "half", '{"format": "mlmcgrad mixed model 1"}']
)
def test_a_damaged_file_is_named(damage: str, fit: Fit, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    fit.save(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: len(text) // 2] if damage == "half" else damage, encoding="utf-8")
    with pytest.raises(ValueError, match=r"fit\.json.* is not a fit"):
        mixed.load(path)


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
    assert found.error < fit.log_likelihood[1] * 2.0
    assert "on 1 degrees" in str(found)
    with pytest.raises(ValueError, match="more or fewer parameters"):
        fit.compare(fit)
    with pytest.raises(ValueError, match="same responses"):
        fit.compare(mixed.fit("y ~ 1 + (1 | g)", MODEL.data.head(150), "bernoulli"))


def test_a_standard_deviation_of_zero_is_said() -> None:
    """Counts that vary less between groups than chance: the maximum is at 0."""
    g = np.repeat(np.arange(30), 6)
    y = np.tile([0, 1, 2, 1, 3, 2], 30)
    fit = mixed.fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, "poisson")
    assert fit.problem is None
    assert fit.sd["g"]["Intercept"] == 0.0
    assert any("standard deviation of random effects is 0" in note for note in fit.notes)
    assert fit.fixed["Intercept"] == pytest.approx(np.log(1.5), abs=1e-3)
    assert np.isnan(fit.sd_intervals["g"].to_numpy()).all()


def test_a_row_of_noise_is_zero() -> None:
    """Two effects, of which the data show none: both standard deviations are exactly 0."""
    g, x = np.repeat(np.arange(30), 6), np.tile([-1.0, 1.0, -1.0, 1.0, 0.5, -0.5], 30)
    y = np.tile([0, 1, 2, 1, 3, 2], 30)
    fit = mixed.fit("y ~ x + (1 + x | g)", {"y": y, "x": x, "g": g}, "poisson")
    assert fit.sd["g"].tolist() == [0.0, 0.0]
    assert any("is 0" in note for note in fit.notes)


def test_a_dispersion_that_the_data_do_not_show_is_named() -> None:
    """Counts that vary less than Poisson's have no size: it grows without bound."""
    rng = np.random.default_rng(3)
    g = rng.integers(0, 60, 600)
    y = rng.binomial(8, 0.3 + 0.4 * (g % 2))
    fit = mixed.fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, "negative_binomial")
    assert fit.problem is not None
    assert "log size" in fit.problem
    assert fit.certificate is None


def test_separation_is_said() -> None:
    data = MODEL.data.assign(y=(MODEL.data["x"] > 0.0).astype(int))
    fit = mixed.fit("y ~ x + (1 | g)", data, "bernoulli")
    assert fit.problem is not None
    assert "separate the responses" in fit.problem
    assert "PROBLEM" in str(fit)


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_equal_responses_have_no_maximum(family: str) -> None:
    fit = mixed.fit(MODEL.formula, MODEL.data.assign(y=0), family)
    assert fit.problem is not None
    assert "without bound" in fit.problem
    assert fit.certificate is None


def test_groups_with_equal_responses_have_no_maximum() -> None:
    data = MODEL.data.assign(y=MODEL.data["g"] % 2)
    fit = mixed.fit("y ~ 1 + (1 | g)", data, "bernoulli")
    assert fit.problem is not None
    assert "without bound" in fit.problem


def test_large_counts_are_no_separation() -> None:
    rng = np.random.default_rng(0)
    y = rng.poisson(1e6 * np.exp(0.5 * rng.standard_normal(40)[MODEL.data["g"]]))
    fit = mixed.fit("y ~ 1 + (1 | g)", MODEL.data.assign(y=y), "poisson")
    assert fit.problem is None
    assert fit.fixed["Intercept"] == pytest.approx(np.log(1e6), abs=0.5)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_single_rows_tell_nothing(family: str) -> None:
    data = MODEL.data.assign(g=range(200))
    with pytest.raises(ValueError, match="one row in every group"):
        mixed.fit(MODEL.formula, data, family)
    counted = data.assign(y=np.random.default_rng(0).poisson(np.exp(data["x"])))
    assert mixed.fit(MODEL.formula, counted, "poisson").problem is None


def test_a_budget_that_is_too_small_is_said() -> None:
    fit = mixed.fit(MODEL.formula, MODEL.data, "bernoulli", iterations=2)
    assert fit.problem is not None
    assert "2 iterations" in fit.problem
    assert fit.certificate is None
    fit = mixed.fit(MODEL.formula, MODEL.data, "bernoulli", iterations=30, tolerance=1e-6)
    assert fit.problem is not None
    assert "Monte Carlo error" in fit.problem


def test_an_interrupt_gives_what_there_is() -> None:
    def stop(step: Step) -> None:
        if step.iteration == 4:
            raise KeyboardInterrupt

    fit = mixed.fit(MODEL.formula, MODEL.data, "bernoulli", progress=stop)
    assert fit.problem is not None
    assert "interrupted after 4 iterations" in fit.problem
    assert np.isfinite(fit.fixed).all()
    assert np.isfinite(fit.standard_errors).all()


def test_progress_shows_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    mixed.fit(MODEL.formula, MODEL.data, "bernoulli", progress=True)
    shown = capsys.readouterr().err
    assert "iteration 5: Intercept" in shown
    assert "standard errors" in shown
    mixed.fit(MODEL.formula, MODEL.data, "bernoulli", progress=False)
    assert capsys.readouterr().err == ""


def test_missing_rows_are_counted() -> None:
    data = MODEL.data.astype({"x": float})
    data.loc[[3, 7], "x"] = np.nan
    fit = mixed.fit(MODEL.formula, data, "bernoulli")
    assert fit.rows == 198
    assert fit.notes[0].startswith("2 rows with missing values")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "normal"}, "family"),
        ({"family": "poisson", "link": "probit"}, "link"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"iterations": 0}, "iterations"),
        ({"candidates": 1}, "candidates"),
        ({"formula": "y ~ z + (1 | g)"}, "z"),
        ({"formula": "y ~ x"}, "group"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    arguments = {"formula": MODEL.formula, "data": MODEL.data, "family": "bernoulli", **change}
    with pytest.raises(ValueError, match=message):
        mixed.fit(**arguments)  # type: ignore[arg-type]


def test_a_figure(fit: Fit, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "fit.png"
    fit.plot().savefig(path)
    assert path.stat().st_size > 10_000
    names = [axes.get_title() for axes in fit.plot().axes]
    assert names[:3] == ["Intercept", "x", "sd(Intercept)"]


def test_an_interrupted_certificate_keeps_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "certify", interrupted)
    fit = mixed.fit(MODEL.formula, MODEL.data, "bernoulli")
    assert fit.interrupted
    assert fit.certificate is None
    assert (fit.monte_carlo_errors < 0.02 * fit.standard_errors).all()
