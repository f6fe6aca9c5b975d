"""The loop that benchmarks compare with has the same gradients in expectation as `Objective`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks import published_loop
from torch import Tensor

from mlmcgrad.iwae import Objective
from tests.chains import rng
from tests.iwae.models import linear, phi_gradient, theta_gradient
from tests.statistics import same_mean

K, CALLS, IMAGES = 2, 300, 40


def _sample(model: Any, step: Any) -> Tensor:
    """Both gradients of independent calls, (calls, parameters)."""
    rows = []
    for _ in range(CALLS):
        model.zero_grad()
        step()
        rows.append(torch.cat([theta_gradient(model), phi_gradient(model)]))
    return torch.stack(rows)


@pytest.mark.parametrize("length", [1, 6])
def test_the_published_loop_has_the_same_mean_gradient(length: int) -> None:
    """Null: θ and φ have the same mean gradients, thinning included; false alarm 1e-5."""
    model = linear()
    y = torch.tensor([[1.3, -0.4, 0.8]], dtype=torch.float64).expand(IMAGES, -1)
    objective = Objective(model, "br", candidates=K, truncation=length)
    first, second = rng(1), rng(2)
    ours = _sample(model, lambda: objective.backward(y, n=1, generator=first))
    theirs = _sample(model, lambda: published_loop.step(model, y, K, length, second))
    assert same_mean(ours, theirs)
    if length > 1:  # planted bug: the chain is not continued, every step is a first one
        short = _sample(model, lambda: published_loop.step(model, y, K, 1, second))
        assert not same_mean(ours, short)
