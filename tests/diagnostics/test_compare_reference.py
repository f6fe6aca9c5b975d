"""A long run, by hand."""

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad.diagnostics import long_run
from tests.chains import rng


def test_mean_and_standard_error_over_the_chains() -> None:
    """Chains that stay at 0 … 7: mean 3½, variance 6, and eight of them."""
    theta = torch.ones((), dtype=torch.float64, requires_grad=True)
    gradient = mg.MarkovGradient(
        mg.kernels.FromStep(lambda x, generator: x),
        lambda x: theta * x,
        mg.Average(1),
        parameters=[theta],
    )
    x0 = torch.arange(8.0, dtype=torch.float64)
    found = long_run(gradient, x0, length=3, burn_in=2, generator=rng())
    assert found.value.tolist() == pytest.approx([3.5])
    assert found.se.tolist() == pytest.approx([(6.0 / 8.0) ** 0.5])
