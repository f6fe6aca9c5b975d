"""How `fit` converges, or explains why not."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import mlmcgrad as mg
from mlmcgrad import mixed
from mlmcgrad.mixed import _fit
from mlmcgrad.mixed.columns import Data
from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.parameters import Layout, scaled, start
from mlmcgrad.mixed.result import Fit, FitStep
from mlmcgrad.mixed.search import Information, SearchState
from tests.mixed.quadrature import simulate

MODEL = simulate("bernoulli", 1, 5, groups=40, rows=5, sd=(1.5, 0.0))


@pytest.fixture(scope="module")
def fit() -> Fit:
    return mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=1)


def _unconverged(formula: str, data: Data, name: str, **options: Any) -> Fit:
    """Fit a model whose search does not converge: one warning says so."""
    with pytest.warns(mixed.ConvergenceWarning) as caught:
        fit = mixed.fit(formula, data, name, **options)
    assert [str(each.message) for each in caught] == [fit.problem]
    assert caught[0].filename == __file__
    assert not fit.converged
    return fit


def test_the_same_seed_gives_the_same_fit(fit: Fit) -> None:
    again = mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=1)
    other = mixed.fit(MODEL.formula, MODEL.data, "bernoulli", seed=2)
    assert torch.equal(again.theta, fit.theta)
    assert fit.certificate is not None
    assert again.certificate is not None
    assert other.certificate is not None
    assert torch.equal(again.certificate.displacement, fit.certificate.displacement)
    assert not torch.equal(other.certificate.displacement, fit.certificate.displacement)


def test_the_order_of_rows_and_units_of_columns_do_not_matter(fit: Fit) -> None:
    """Up to the noise, of which there are 0.02 standard errors."""
    data = MODEL.data.sample(frac=1.0, random_state=0)
    data["x"] = 1000.0 * data["x"] + 1e5
    moved = mixed.fit(MODEL.formula, data, "bernoulli", seed=1)
    slope = 1000.0 * moved.params["x"]
    assert slope == pytest.approx(fit.params["x"], abs=0.1 * fit.bse["x"])
    assert moved.sd["g"]["Intercept"] == pytest.approx(fit.sd["g"]["Intercept"], rel=0.02)
    assert moved.llf == pytest.approx(fit.llf, abs=0.02)


def test_a_standard_deviation_of_zero_is_said() -> None:
    """Counts that vary less between groups than chance: the maximum is at 0."""
    g = np.repeat(np.arange(30), 6)
    y = np.tile([0, 1, 2, 1, 3, 2], 30)
    fit = mixed.fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, "poisson")
    assert fit.problem is None
    assert fit.sd["g"]["Intercept"] == 0.0
    assert any("standard deviation of random effects is 0" in note for note in fit.notes)
    assert fit.params["Intercept"] == pytest.approx(np.log(1.5), abs=1e-3)
    assert np.isnan(fit.sd_intervals["g"].to_numpy()).all()


@pytest.mark.parametrize(("seed", "count"), [(3, 5), (1, 20)])
def test_data_without_variance_between_groups_are_certified(seed: int, count: int) -> None:
    """Next to 0 a score has no noise, and a distance of 0.02 standard errors was called too far."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(40), count)
    for _ in range(5):
        fit = mixed.fit("y ~ 1 + (1 | g)", {"y": rng.integers(0, 2, len(g)), "g": g}, "bernoulli")
        assert fit.problem is None
        assert fit.certificate is not None
        assert fit.certificate.bound < 0.05


def test_a_standard_deviation_leaves_0_where_the_likelihood_is_smallest() -> None:
    """The score of a standard deviation is 0 at 0 too, where searches ended that came near it."""
    rng = np.random.default_rng(1039)
    g, x, y = np.repeat(np.arange(40), 20), rng.standard_normal(800), rng.integers(0, 2, 800)
    for seed in range(3):
        fit = mixed.fit("y ~ x + (1 | g)", {"y": y, "x": x, "g": g}, "bernoulli", seed=seed)
        assert fit.problem is None
        # By the quadrature of benchmarks/quadrature.py with 60 nodes.
        assert fit.sd["g"]["Intercept"] == pytest.approx(0.17787, abs=0.004)


def test_a_row_of_noise_is_zero() -> None:
    """Two effects, of which the data show none: both standard deviations are exactly 0."""
    g, x = np.repeat(np.arange(30), 6), np.tile([-1.0, 1.0, -1.0, 1.0, 0.5, -0.5], 30)
    y = np.tile([0, 1, 2, 1, 3, 2], 30)
    fit = mixed.fit("y ~ x + (1 + x | g)", {"y": y, "x": x, "g": g}, "poisson")
    assert fit.sd["g"].tolist() == [0.0, 0.0]
    assert any("is 0" in note for note in fit.notes)


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_dispersion_that_the_data_do_not_show_is_named(seed: int) -> None:
    """Poisson counts have no size: it grows without bound, and its interval is NaN."""
    rng = np.random.default_rng(seed)
    g, x = np.repeat(np.arange(40), 8), rng.standard_normal(320)
    y = rng.poisson(np.exp(0.5 + 0.3 * x + 0.5 * rng.standard_normal(40)[g]))
    data = {"y": y, "x": x, "g": g}
    fit = _unconverged("y ~ x + (1 | g)", data, "negative_binomial")
    assert fit.problem is not None
    assert "flat in log size" in fit.problem
    assert fit.certificate is None
    assert fit.dispersion is not None
    assert fit.dispersion["estimate"] > 100.0
    assert fit.dispersion[["low", "high"]].isna().all()
    # All others are determined.
    assert fit.conf_int().notna().all().all()
    assert fit.sd_intervals["g"].notna().all().all()
    assert fit.predict(effects="marginal", interval=0.9).notna().all().all()
    assert "PROBLEM" in str(fit)


def _outlying(seed: int, name: str, law: str) -> pd.DataFrame:
    """Data with a random slope of a covariate with outliers, and a clear maximum."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(80), 8)
    x = rng.standard_t(2, 640) if law == "t" else rng.lognormal(0.0, 1.2, 640)
    b = rng.standard_normal((80, 2)) @ np.array([[1.0, 0.3], [0.0, 0.8]])
    eta = -0.5 + 0.5 * x + b[g, 0] + b[g, 1] * x
    if name == "poisson":
        y = rng.poisson(np.exp(np.clip(0.3 * eta, -5.0, 5.0)))
    else:
        y = (rng.random(640) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    return pd.DataFrame({"y": y, "x": x, "g": g})


# At the estimate, by the quadrature of tests/mixed/quadrature.py with 80 nodes in each direction.
ERRORS = [0.08327, 0.04062, 0.06966, 0.04625, 0.04775]


@pytest.mark.parametrize(
    ("name", "seed", "law"), [("bernoulli", 0, "t"), ("poisson", 1, "lognormal")]
)
def test_outliers_are_neither_separation_nor_flatness(name: str, seed: int, law: str) -> None:
    """There was "no maximum", or the likelihood was "flat"; errors varied by a quarter."""
    data = _outlying(seed, name, law)
    fits = [mixed.fit("y ~ x + (1 + x | g)", data, name, seed=seed) for seed in range(2)]
    assert [fit.problem for fit in fits] == [None, None]
    assert all(float(fit.standard_error_noise.max()) < 0.02 for fit in fits)
    errors = [np.sqrt(np.diag(fit.parameter_covariance)) for fit in fits]
    assert np.abs(errors[0] / errors[1] - 1.0).max() < 0.04
    if name == "poisson":
        assert np.allclose(errors[0], ERRORS, rtol=0.02)


@pytest.mark.parametrize("seed", [1, 3])
def test_a_singular_covariance_is_not_flat(seed: int) -> None:
    """With an intercept that hardly varies, its correlation with the slope is not determined."""
    rng = np.random.default_rng(seed)
    g, x = np.repeat(np.arange(60), 8), rng.standard_normal(480)
    y = rng.poisson(np.exp(0.3 + 0.4 * x + 0.9 * rng.standard_normal(60)[g] * x))
    fit = mixed.fit("y ~ x + (1 + x | g)", {"y": y, "x": x, "g": g}, "poisson")
    assert fit.problem is None
    assert fit.sd["g"]["x"] == pytest.approx(0.9, abs=0.3)
    assert np.isfinite(fit.sd_intervals["g"].loc["x"]).all()


def test_a_combination_of_effects_is_no_perfect_correlation() -> None:
    """The third effect is a sum of the others, and the largest correlation is 0.71."""
    layout = Layout(1, (3,), dispersion=False)
    theta = torch.tensor([0.3, 1.0, 0.0, 1.0, 0.7, 0.7, 1e-5], dtype=torch.float64)
    noise = 1e-6 * torch.eye(7, dtype=torch.float64)
    information = Information(torch.eye(7, dtype=torch.float64).expand(2, 7, 7))
    state = SearchState(9, theta, information, noise, averaged=16)
    found, (note,) = _fit._on_the_boundary(layout, state)
    assert "is singular: one of them is a combination of others" in note
    assert found.tolist() == [*theta[:6].tolist(), 0.0]


def test_the_first_point_does_not_depend_on_memory() -> None:
    """LAPACK's least squares reads memory that was never written; so far four results in 2000."""
    design = build(MODEL.formula, MODEL.data)
    units, _ = scaled(design, family("bernoulli"))
    layout, rng = Layout.of(units, family("bernoulli")), np.random.default_rng(0)
    found = set()
    for _ in range(200):
        waste = torch.randint(-5, 5, (int(rng.integers(1, 9)),), dtype=torch.int32)
        del waste
        found.add(start(units, family("bernoulli"), layout).numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(
    ("name", "y", "x", "separated"),
    [
        ("bernoulli", [0, 0, 1, 1], [1.0, 2.0, 3.0, 4.0], True),
        ("bernoulli", [0, 0, 1, 1], [1.0, 2.0, 2.0, 4.0], True),  # but for one value
        ("bernoulli", [0, 1, 0, 1], [1.0, 2.0, 3.0, 4.0], False),
        ("bernoulli", [0, 1, 0, 1], [0.0, 0.0, 0.0, 1e6], True),  # one level of one row
        ("bernoulli", [0, 1, 0, 1], [1.0, 1e6, 3.0, -1e6], False),
        ("poisson", [0, 0, 2, 2], [1.0, 2.0, 3.0, 4.0], False),
        ("poisson", [0, 0, 2, 1], [1.0, 2.0, 3.0, 3.0], True),
        ("poisson", [0, 0, 2, 1], [1.0, 4.0, 3.0, 3.0], False),
        ("gamma", [1, 1, 2, 3], [1.0, 2.0, 3.0, 3.0], False),
    ],
)
def test_separation_is_decided_exactly(
    name: str, y: list[int], x: list[float], separated: bool
) -> None:
    units, _ = scaled(build("y ~ x + (1 | g)", {"y": y, "x": x, "g": [0, 0, 1, 1]}), family(name))
    assert _fit._separated(units, family(name)) == separated


def test_separation_is_said() -> None:
    data = MODEL.data.assign(y=(MODEL.data["x"] > 0.0).astype(int))
    fit = _unconverged("y ~ x + (1 | g)", data, "bernoulli")
    assert fit.problem is not None
    assert "separate the responses" in fit.problem
    assert "PROBLEM" in str(fit)


@pytest.mark.parametrize("name", ["bernoulli", "poisson"])
def test_equal_responses_have_no_maximum(name: str) -> None:
    fit = _unconverged(MODEL.formula, MODEL.data.assign(y=0), name)
    assert fit.problem is not None
    assert "without bound" in fit.problem
    assert fit.certificate is None


def test_groups_with_equal_responses_have_no_maximum() -> None:
    data = MODEL.data.assign(y=MODEL.data["g"] % 2)
    fit = _unconverged("y ~ 1 + (1 | g)", data, "bernoulli")
    assert fit.problem is not None
    assert "without bound" in fit.problem


def test_large_counts_are_no_separation() -> None:
    rng = np.random.default_rng(0)
    y = rng.poisson(1e6 * np.exp(0.5 * rng.standard_normal(40)[MODEL.data["g"]]))
    fit = mixed.fit("y ~ 1 + (1 | g)", MODEL.data.assign(y=y), "poisson")
    assert fit.problem is None
    assert fit.params["Intercept"] == pytest.approx(np.log(1e6), abs=0.5)


@pytest.mark.parametrize("name", ["bernoulli", "gaussian"])
def test_single_rows_tell_nothing(name: str) -> None:
    data = MODEL.data.assign(g=range(200))
    with pytest.raises(ValueError, match="one row in every group"):
        mixed.fit(MODEL.formula, data, name)
    counted = data.assign(y=np.random.default_rng(0).poisson(np.exp(data["x"])))
    assert mixed.fit(MODEL.formula, counted, "poisson").problem is None


def test_a_budget_that_is_too_small_is_said() -> None:
    fit = _unconverged(MODEL.formula, MODEL.data, "bernoulli", iterations=2)
    assert fit.problem is not None
    assert "2 iterations" in fit.problem
    assert fit.certificate is None
    fit = _unconverged(
        MODEL.formula,
        MODEL.data,
        "bernoulli",
        iterations=30,
        tolerance=1e-6,
        estimator=mg.MLMCSum(64),
    )
    assert fit.problem is not None
    assert "Monte Carlo error" in fit.problem


def test_an_interrupt_gives_what_there_is() -> None:
    def stop(step: FitStep) -> None:
        if step.iteration == 4:
            raise KeyboardInterrupt

    fit = _unconverged(MODEL.formula, MODEL.data, "bernoulli", progress=stop)
    assert fit.problem is not None
    assert "interrupted after 4 iterations" in fit.problem
    assert np.isfinite(fit.params).all()
    assert np.isfinite(fit.bse).all()


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
    assert fit.nobs == 198
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


def test_an_interrupted_certificate_keeps_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_fit, "certify", interrupted)
    fit = _unconverged(MODEL.formula, MODEL.data, "bernoulli")
    assert fit.interrupted
    assert fit.certificate is None
    assert (fit.monte_carlo_errors < 0.02 * fit.bse).all()


def test_what_is_needed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name}", name="pandas")

    assert "fit" in dir(mixed)
    with pytest.raises(AttributeError, match="nothing"):
        _ = mixed.nothing
    monkeypatch.setattr(mixed, "import_module", missing)
    monkeypatch.delitem(vars(mixed), "load", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"package pandas; pip install .*\[mixed\]"):
        _ = mixed.load


def test_numbers_that_overflow_are_an_error_in_words() -> None:
    data = simulate("poisson", 1, 5, groups=40, rows=5, sd=(1.0, 0.0)).data
    data["far"] = 1e3 * (data["g"] == 0)
    with pytest.raises(FloatingPointError, match=r"overflows|not a number"):
        mixed.fit("y ~ x + offset(far) + (1 | g)", data, "poisson")
