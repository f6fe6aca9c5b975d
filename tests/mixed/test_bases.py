"""Polynomials, splines, contrasts and weights, against patsy, SciPy and repeated rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from patsy import dmatrix
from scipy.interpolate import CubicSpline
from scipy.stats import multivariate_normal

from mlmcgrad import mixed
from mlmcgrad.mixed.design import build
from tests.mixed.tables import table


def _columns(term: str, data: pd.DataFrame) -> np.ndarray:
    return build(f"y ~ {term} + (1 | g)", data).fixed.numpy()[:, 1:]


def test_polynomials_are_orthonormal() -> None:
    data = table()
    found = _columns("poly(x, 3)", data)
    assert np.allclose(found.T @ found, np.eye(3), atol=1e-12)
    assert np.allclose(found.sum(0), 0.0, atol=1e-12)
    assert np.allclose(_columns("poly(x, 1)", data), found[:, :1])
    powers = np.vander(data["x"], 4, increasing=True)
    for degree in (1, 2, 3):  # the k-th is of degree k
        q, _ = np.linalg.qr(powers[:, : degree + 1])
        assert np.allclose(q @ (q.T @ found[:, :degree]), found[:, :degree], atol=1e-12)


@pytest.mark.parametrize(
    "arguments", ["df=5", "df=3", "df=4, degree=2", "knots=(-0.5, 0.7), degree=1"]
)
def test_b_splines_are_those_of_patsy(arguments: str) -> None:
    data = table()
    expected = np.asarray(dmatrix(f"bs(x, {arguments}) - 1", data))
    assert np.allclose(_columns(f"bs(x, {arguments})", data), expected, atol=1e-12)


def test_natural_splines_span_all_with_their_knots() -> None:
    """They are linear beyond the range of the data of the fit."""
    data, knots = table(), [-0.5, 0.3, 0.9]
    found = np.column_stack([np.ones(60), _columns(f"ns(x, knots={tuple(knots)})", data)])
    every = [data["x"].min(), *knots, data["x"].max()]
    cardinal = CubicSpline(every, np.eye(5), bc_type="natural")(data["x"])
    weights = np.linalg.solve(found.T @ found, found.T @ cardinal)
    assert np.allclose(found @ weights, cardinal, atol=1e-9)
    assert np.linalg.matrix_rank(found) == 5
    coding = build("y ~ ns(x, df=4) + (1 | g)", data).coding
    beyond = coding.design({"x": [10.0, 11.0, 12.0, -8.0, -9.0, -10.0], "g": ["A"] * 6})
    assert np.allclose(np.diff(beyond.fixed.numpy().reshape(2, 3, -1), 2, axis=1), 0.0, atol=1e-9)


@pytest.mark.parametrize("term", ["poly(x, 3)", "bs(x, df=5)", "ns(x, df=3)", "poly(log(z), 2):a"])
def test_new_rows_have_the_columns_that_they_had_in_the_fit(term: str) -> None:
    data = table()
    design = build(f"y ~ {term} + (1 | g)", data)
    for rows in ([7], [5, 3], list(range(60))):
        new = design.coding.design(data.iloc[rows].drop(columns="y"))
        np.testing.assert_array_equal(new.fixed, design.fixed[rows])


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("poly(x)", r"poly\(\) needs a degree ≥ 1"),
        ("poly(x, 1.5)", r"poly\(\) needs a degree ≥ 1"),
        ("poly(n, 8)", r"needs more than 8 distinct values, got 8"),
        ("poly(x, 0)", r"poly\(\) needs a degree ≥ 1"),
        ("bs(x)", r"bs\(\) needs either df or knots"),
        ("bs(x, df=5, knots=(0.1,))", r"bs\(\) needs either df or knots"),
        ("bs(x, df=2)", r"df of bs\(\) must be a whole number ≥ 3, got 2"),
        ("ns(x, df=2, degree=2)", r"an argument of bs\(\) only"),
        ("ns(x, knots=(9.0,))", r"must increase and lie inside the range of the data, got 9 in"),
        ("ns(x, knots=(0.5, 0.1))", r"must increase and lie inside the range"),
        ("ns(x, knots=(0.5, 0.5))", r"must increase and lie inside the range"),
        ("ns(a, df=2)", r"ns\(a, df=2\) must be a function of numbers, got "),
        ("log(poly(x, 2))", r"poly\(\) has several columns and is a term of its own"),
    ],
)
def test_bases_that_cannot_be(term: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(f"y ~ {term} + (1 | g)", table())


def test_b_splines_end_with_the_data() -> None:
    coding = build("y ~ bs(x, df=4) + (1 | g)", table()).coding
    with pytest.raises(ValueError, match=r"bs\(\) is defined on the range .*, got 9; use ns\(\)"):
        coding.design({"x": [0.0, 9.0], "g": ["A", "B"]})


@pytest.mark.parametrize("kind", ["Poly", "Helmert"])
def test_contrasts_are_those_of_patsy(kind: str) -> None:
    """Patsy's Helmert contrasts are those of R up to the units of its columns."""
    data = table()
    for term in (f"C(c, {kind})", f"0 + C(c, {kind})", f"C(c, {kind}):x"):
        found, expected = build(f"y ~ {term} + (1 | g)", data).fixed.numpy(), dmatrix(term, data)
        assert found.shape == expected.shape
        expected = np.asarray(expected)
        units = (found * expected).sum(0) / (expected**2).sum(0)
        q, _ = np.linalg.qr(expected)
        assert np.allclose(q @ (q.T @ found), found, atol=1e-12)
        if not term.startswith("0"):
            assert np.allclose(found, units * expected, atol=1e-12)


def test_a_double_bar_separates_effects() -> None:
    data = table()
    one = build("y ~ x + (1 + x + a || g)", data)
    two = build("y ~ x + (1 | g) + (0 + x | g) + (1 | h)", data)
    assert one.effects[0].blocks == (1, 1, 1, 1)
    assert one.effects[0].terms == ("Intercept", "x", "a[q]", "a[r]")
    assert two.effects[0].blocks == (1, 1)


def test_weights_are_read() -> None:
    data = table().assign(w=np.linspace(0.5, 2.0, 60))
    data.loc[3, "w"], data.loc[5, "x"] = np.nan, np.nan
    design = build("y ~ x + (1 | g)", data, "w")
    assert design.weights is not None
    assert design.weights.tolist() == data["w"].drop([3, 5]).tolist()
    assert (design.dropped, list(design.data)) == (2, ["g", "x", "y"])
    assert design.fixed[:, 1].tolist() == data["x"].drop([3, 5]).tolist()
    cases: list[tuple[Any, str]] = [
        (data["w"].fillna(0.0).tolist(), r"weights must be positive and finite, got 0.0 in row 3"),
        ([1.0, np.inf] * 30, "weights must be positive and finite, got inf in row 1"),
        ([1.0] * 59, r"weights must have one number per row, 60, got \(59,\)"),
        (["much"] * 60, "weights must be numbers, got 'much'"),
        ("a", "the weights in 'a' must be numbers, got "),
        ("v", "data has no column 'v'"),
    ]
    for weights, message in cases:
        with pytest.raises(ValueError, match=message):
            build("y ~ x + (1 | g)", data, weights)


def test_a_row_with_weight_2_counts_twice() -> None:
    """But for a gaussian response, whose variance is σ²/weight."""
    rng = np.random.default_rng(0)
    g, x = np.repeat(np.arange(30), 5), rng.standard_normal(150)
    weight = rng.integers(1, 4, 150)
    eta = 0.5 + 0.4 * x + 0.7 * rng.standard_normal(30)[g]
    data = pd.DataFrame({"y": rng.poisson(np.exp(eta)), "x": x, "g": g})
    formula = "y ~ x + (1 | g)"
    weighted = mixed.fit(formula, data, "poisson", weights=weight.tolist())
    repeated = mixed.fit(formula, data.loc[data.index.repeat(weight)], "poisson")
    apart = (weighted.theta - repeated.theta) / repeated.parameter_covariance.diagonal().sqrt()
    assert float(apart.abs().max()) < 1e-3
    assert weighted.llf == pytest.approx(repeated.llf, abs=1e-5)
    data["y"] = eta + rng.standard_normal(150) / weight**0.5
    fit = mixed.fit(formula, data, "gaussian", weights=weight.tolist())
    assert fit.dispersion is not None
    same = g[:, None] == g
    covariance = fit.sd["g"]["Intercept"] ** 2 * same + np.diag(
        fit.dispersion["estimate"] ** 2 / weight
    )
    law = multivariate_normal(fit.predict(effects="none"), covariance)
    assert fit.llf == pytest.approx(law.logpdf(data["y"]), abs=1e-6)
    assert fit.llf_se == 0.0
