"""Draws of weight 0 with infinite slopes: heavy tails of the proposal, and an outlying column."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import Family, family
from mlmcgrad.mixed.grouped import Grouped
from tests.chains import rng
from tests.statistics import mean_is

FAR = 400.0  # 2 standard deviations from the mode, e^η overflows
LAWS: dict[str, tuple[str, str | None, float]] = {
    "poisson": ("poisson", None, 0.0),
    "gamma": ("gamma", None, 2.0),
    "cloglog": ("bernoulli", "cloglog", 0.0),
}


def _data(y: float) -> pd.DataFrame:
    """Return groups of one row with an outlying column, and of two rows with a small one."""
    group = np.repeat(np.arange(8), [1, 1, 1, 1, 2, 2, 2, 2])
    far = np.array([FAR, -FAR] * 2 + [0.1, 0.2] * 4)
    rest = np.array([1.0, 2.0] * 6)
    return pd.DataFrame({"y": np.where(abs(far) > 1.0, y, rest - (y == 0.0)), "x": far, "g": group})


def _exact(law: Family, data: pd.DataFrame, theta: Tensor) -> float:
    """Return the log-likelihood by the trapezoidal rule, with many points where it is narrow."""
    beta, sd = theta[:2].tolist()
    total = 0.0
    for _, rows in data.groupby("g"):
        width = 30.0 / max(1.0, sd * float(rows["x"].abs().max()))
        u = np.union1d(np.linspace(-12.0, 12.0, 20_001), np.linspace(-width, width, 20_001))
        x, y = (torch.tensor(rows[name].to_numpy(float))[:, None] for name in ("x", "y"))
        eta, one = beta + sd * x * torch.from_numpy(u), torch.ones_like(y)
        value, _, _ = law.slopes(eta, y, one, torch.zeros((), dtype=torch.float64))
        density = value.sum(0).exp().numpy() * norm.pdf(u)
        total += math.log(np.trapezoid(density, u))
    return total


@pytest.mark.parametrize("name", LAWS)
def test_a_draw_of_weight_0_has_no_slope(name: str) -> None:
    """Null: the mean score is that of quadrature, false alarm 1e-5; without a mask it is NaN."""
    which, link, y = LAWS[name]
    law, data = family(which, link), _data(y)
    design = build("y ~ 1 + (0 + x | g)", data)
    likelihood = Grouped(design, law, None, candidates=32, generator=rng())
    theta = torch.tensor([-0.3, 1.0] + [0.0] * (law.dispersion is not None), dtype=torch.float64)
    scores = likelihood.scores(theta, 400)
    assert scores.isfinite().all()
    assert likelihood.information(theta).isfinite().all()
    exact = []
    for i in range(2):
        step = torch.zeros_like(theta)
        step[i] = 1e-4
        ends = [_exact(law, data, theta + sign * step) for sign in (1.0, -1.0)]
        exact.append((ends[0] - ends[1]) / 2e-4)
    assert mean_is(scores[:, :2], torch.tensor(exact, dtype=torch.float64))
