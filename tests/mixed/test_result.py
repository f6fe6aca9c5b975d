"""What a fit says and does: names, table, predictions, tests, files, figure."""

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from mlmcgrad import mixed
from mlmcgrad.mixed.result import Fit
from tests.mixed.quadrature import simulate

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
    assert fit.llf_se == 0.0
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
    figure = fit.plot()
    figure.savefig(path)
    assert path.stat().st_size > 10_000
    names = [axes.get_title() for axes in figure.axes]
    assert names[:3] == ["Intercept", "x", "sd(Intercept)"]
