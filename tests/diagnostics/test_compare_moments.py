"""Moments of estimates that have the rows in turn."""

import pytest
import torch
from torch import Tensor

from mlmcgrad.diagnostics import _compare
from tests.chains import rng
from tests.statistics import mean_is


def _of_rows(repetitions: int, rows: int = 2) -> Tensor:
    """Variance of an estimate, and of the mean, from two rows with different means."""
    generator, means = rng(), torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    found = []
    for _ in range(repetitions):
        noise = torch.randn(5, 2, 2, dtype=torch.float64, generator=generator)
        sample = _compare.moments((means + noise).reshape(10, 2), rows, cost=1.0)
        found.append([sample.variance, float(sample.noise.trace())])
    return torch.tensor(found)


def test_how_rows_differ_is_no_noise_of_the_mean() -> None:
    """They are simulated equally often. Null hypothesis: a variance of 2 within rows, of which the
    mean has a tenth; taking both for one row, which adds 6.25, is the planted bug."""
    right = torch.tensor([2.0, 2.0 / 10.0], dtype=torch.float64)
    assert mean_is(_of_rows(300), right)
    assert not mean_is(_of_rows(300, rows=1), right)


@pytest.mark.parametrize(("rounds", "rows"), [(2, 50), (100, 1), (10, 10)])
def test_the_standard_error_of_a_variance(rounds: int, rows: int) -> None:
    """It is the spread of the variances of 2000 samples, to 10 %; those of a few rounds would be
    30 % too small if pairs counted as two."""
    generator, found = rng(), []
    for _ in range(2000):
        each = torch.randn(rounds * rows, 3, dtype=torch.float64, generator=generator)
        sample = _compare.moments(each, rows, cost=1.0)
        found.append([sample.variance, sample.variance_se])
    values = torch.tensor(found)
    assert float(values[:, 1].mean()) == pytest.approx(float(values[:, 0].std()), rel=0.1)
