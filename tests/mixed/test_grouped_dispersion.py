"""Scores and information of families with a dispersion, against the trapezoidal rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma, NegativeBinomial, Normal

from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.grouped import Grouped
from tests.chains import rng
from tests.statistics import mean_is

AT = torch.tensor([0.3, 0.4, 0.7, 0.5], dtype=torch.float64)  # β, σ, log φ
LAWS: dict[str, Callable[[Tensor, Tensor], Distribution]] = {
    "gaussian": lambda eta, phi: Normal(eta, phi),
    "gamma": lambda eta, phi: Gamma(phi, phi * (-eta).exp()),
    "negative_binomial": lambda eta, phi: NegativeBinomial(phi, logits=eta - phi.log()),
}


def _data(name: str) -> pd.DataFrame:
    random = np.random.default_rng(0)
    g, x = np.repeat(np.arange(12), 4), torch.from_numpy(random.standard_normal(48))
    eta = AT[0] + AT[1] * x + AT[2] * torch.from_numpy(random.standard_normal(12))[g]
    torch.manual_seed(0)
    y = LAWS[name](eta, AT[3].exp()).sample()
    return pd.DataFrame({"y": y.numpy(), "x": x.numpy(), "g": g})


def _log_likelihood(law: str, data: pd.DataFrame) -> Callable[[Tensor], Tensor]:
    u = torch.linspace(-9.0, 9.0, 2001, dtype=torch.float64)
    x, y = (torch.tensor(data[name].to_numpy(float))[:, None] for name in ("x", "y"))

    def value(theta: Tensor) -> Tensor:
        eta = theta[0] + theta[1] * x + theta[2] * u
        rows = LAWS[law](eta, theta[3].exp()).log_prob(y)
        groups = rows.reshape(12, 4, -1).sum(1) + Normal(0.0, 1.0).log_prob(u)
        return groups.logsumexp(1).sum()  # up to a constant

    return value


@pytest.mark.parametrize("name", LAWS)
def test_scores_and_information(name: str) -> None:
    """Null: the mean score is exact; false alarm 1e-5. Of gaussian responses each score is."""
    data = _data(name)
    exact = _log_likelihood(name, data)
    score = torch.autograd.functional.jacobian(exact, AT)
    curvature = -torch.autograd.functional.hessian(exact, AT)
    law = family(name)
    likelihood = Grouped(build("y ~ x + (1 | g)", data), law, None, candidates=8, generator=rng())
    scores = likelihood.scores(AT, 300)
    if name == "gaussian":
        assert torch.allclose(scores, score.expand_as(scores), rtol=1e-6, atol=1e-6)
    else:
        assert mean_is(scores, score)
        # Less noise than the data have: the terms of second order are there.
        assert bool((scores.std(0) < 0.3 * curvature.diagonal().sqrt()).all())
    found = torch.cat([likelihood.information(AT) for _ in range(10)]).mean(0)
    size = curvature.diagonal().sqrt()
    assert float(((found - curvature) / size / size[:, None]).abs().max()) < 0.02
