"""What the theorems say about the runs of `rates`."""

from __future__ import annotations

import pytest
import torch

from mlmcgrad.experiments.rates import predictions
from mlmcgrad.experiments.rates.run import make_optimizer, weight
from mlmcgrad.experiments.rates.settings import GAMMA, OPTIONS


def test_constants_and_rates() -> None:
    problem, constants = predictions.constants()
    assert constants["beta"] == pytest.approx(2.0 * 0.3**2, rel=1e-9)
    assert constants["c1"] == problem.constants.c1 == pytest.approx(4.0 * 2.0**0.5 / 0.3)
    for name in OPTIONS:
        order = predictions.rate(name, 0.5)
        assert (order.exponent, order.log_power) == (-0.5, 2.0)
        assert predictions.rate(name, 0.0).exponent == 0.0
        # The same ϖ_N as the weights of the run, θ_N included.
        optimizer = make_optimizer(name, torch.zeros(1, 2, requires_grad=True))
        total = sum(weight(optimizer, n) for n in range(51))
        bound = predictions.bound(name, 0.5, [50], problem)
        assert bound.weight[0] == pytest.approx(total)
    assert GAMMA.exponent == -0.5
