"""The findings of `rates`: slopes with errors, verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlmcgrad.experiments.rates import findings, predictions
from mlmcgrad.experiments.rates.findings import fit
from mlmcgrad.experiments.rates.run import log_grid


def test_fit() -> None:
    """A power law has its slope without error; noise of replicas gives the error it has."""
    N = log_grid(1000)
    assert N[0] == 10
    assert N[-1] == 1000
    generator = np.random.default_rng(0)
    factor = generator.uniform(0.5, 1.5, 64)
    values = np.array(N)[:, None] ** -0.5 * factor
    assert fit(N, values) == pytest.approx((-0.5, 0.0), abs=1e-12)
    slopes, errors = [], []
    for _ in range(200):
        tilt = -0.5 + 0.1 * generator.standard_normal(64)
        slope, error = fit(N, (np.array(N)[:, None] / 300.0) ** tilt)
        slopes.append(slope)
        errors.append(error)
    # the spread of 200 slopes is known to 5 %, their mean error to about 2 %
    assert np.mean(errors) == pytest.approx(np.std(slopes), rel=0.25)
    assert np.std(slopes) == pytest.approx(0.1 / 8.0, rel=0.25)


def test_recent_leaves_out_what_came_before() -> None:
    """Mean 2 with weight 1, then mean 4 with weight 3: (12 − 2)/2 in between."""
    result = {
        "optimizer": "sgd",
        "alpha": 0.0,
        "N": [10, 20],
        "weights": [1.0, 3.0],
        "values": [[1.0, 3.0], [4.0, 4.0]],
    }
    lines = findings._lines(result, predictions.constants()[0])
    assert [line["recent"] for line in lines] == [2.0, 5.0]
    assert lines[0]["standard_error"] == 1.0


def _row(**changes: Any) -> dict[str, Any]:
    row = {
        "optimizer": "sgd",
        "alpha": 0.5,
        "slope": -0.3,
        "slope_se": 0.01,
        "N": 9,
        "predicted_slope": -0.27,
        "bound_holds": True,
        "final_interval": [0.1, 0.2],
        "recent": 0.6,
        "level": 0.6,
    }
    return row | changes


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (_row(), "reached"),
        (_row(slope=-0.26), "reached"),
        (_row(slope=-0.24), "SLOWER"),
        (_row(bound_holds=False), "reached, BOUND FAILS"),
        (_row(alpha=0.0, slope=0.0, final_interval=[0.5, 0.6]), "levels off"),
        (_row(alpha=0.0, slope=-0.3, final_interval=[0.5, 0.6]), "NOT LEVEL"),
        (_row(alpha=0.0, slope=0.0, final_interval=[0.15, 0.6]), "NOT LEVEL"),
        (_row(alpha=0.0, slope=0.0, final_interval=[0.5, 0.6], level=1.0), "NOT LEVEL"),
    ],
)
def test_verdicts(row: dict[str, Any], verdict: str) -> None:
    rows = [row, _row()]
    findings.judge(rows)
    assert rows[0]["verdict"] == verdict
