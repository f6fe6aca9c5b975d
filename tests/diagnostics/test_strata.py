"""Moments of a stratum by hand, and that its resampled twin has the right spread."""

import math

import pytest
import torch

from mlmcgrad.diagnostics.strata import Stratum, _stratum
from tests.chains import rng


def test_moments_by_hand() -> None:
    """Four estimates (±0.1, 0), (0, ±0.2): mean 0, kurtosis 2 in each coordinate."""
    sample = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.2], [0.0, -0.2]], dtype=torch.float64)
    found = _stratum(sample, 7)
    assert (found.count, found.length) == (4, 7)
    assert found.mean.tolist() == [0.0, 0.0]
    assert found.covariance.flatten().tolist() == pytest.approx([0.02 / 3, 0.0, 0.0, 0.08 / 3])
    assert found.second == pytest.approx(0.025)
    assert found.second_variance == pytest.approx(4 * 0.015**2 / 3)
    assert found.third == pytest.approx(0.0045)
    assert found.third_variance == pytest.approx(4 * 0.0035**2 / 3)
    # The mean fourth power over the square of the variance with divisor 3: (2·10⁻⁴/4)/(0.02/3)².
    assert found.kurtosis == pytest.approx(1.125)
    assert _stratum(torch.ones(3, 2, dtype=torch.float64), 1).kurtosis == 3.0


def test_resampling_has_the_standard_errors() -> None:
    """Null: shifts of mean, second and third moment have variance σ²/count; 5 standard errors."""
    covariance = torch.tensor([[4.0, 1.0], [1.0, 9.0]], dtype=torch.float64)
    stratum = Stratum(100, 1, torch.zeros(2).double(), covariance, 50.0, 16.0, 90.0, 25.0, 3.0)
    generator, n = rng(1), 4000
    twins = [stratum.resampled(generator) for _ in range(n)]
    means = torch.stack([twin.mean for twin in twins])
    tolerance = 5.0 * math.sqrt(2.0 / n)
    assert torch.allclose(means.T.cov(), covariance / 100.0, atol=tolerance * 0.09)
    for values, centre, variance in (
        ([twin.second for twin in twins], 50.0, 0.16),
        ([twin.third for twin in twins], 90.0, 0.25),
    ):
        sample = torch.tensor(values, dtype=torch.float64)
        assert float(sample.var()) == pytest.approx(variance, rel=tolerance)
        assert float(sample.mean()) == pytest.approx(centre, abs=5.0 * math.sqrt(variance / n))
    assert (
        abs(float(torch.corrcoef(torch.tensor([[t.second, t.third] for t in twins]).T)[0, 1])) < 0.1
    )
