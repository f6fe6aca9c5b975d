"""Moments of a stratum by hand, and its chains."""

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad.diagnostics import _levels
from mlmcgrad.diagnostics._levels import _stratum
from mlmcgrad.lengths import Lengths
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


def test_two_estimates_by_hand() -> None:
    """The second coordinate has kurtosis 1/2² and the first, which never varies, counts as 3."""
    two = _stratum(torch.tensor([[5.0, 1.0], [5.0, 3.0]], dtype=torch.float64), 1)
    assert two.covariance.tolist() == [[0.0, 0.0], [0.0, 2.0]]
    assert two.kurtosis == 3.0


@pytest.mark.parametrize(
    ("length", "at_once", "calls"),
    [
        (2, 2**15, [15]),  # 30 // 2 replicates, five of each row
        (2, 7, [6, 6, 3]),  # at most 7 chains at once
        (2, 2, [3] * 5),  # never less than one of each row
        (3, 2**15, [12]),  # 30 // 3, rounded up to as many for each row
        (10, 2**15, [6]),  # at least 5
    ],
)
def test_replicates_go_to_the_rows_in_turn(
    monkeypatch: pytest.MonkeyPatch, length: int, at_once: int, calls: list[int]
) -> None:
    """Chains that stay where they are: the estimate of a row is its start times its context."""
    monkeypatch.setattr(_levels, "_CHAINS", at_once)
    theta = torch.ones((), dtype=torch.float64, requires_grad=True)
    gradient = mg.MarkovGradient(
        mg.kernels.FromStep(lambda x, c, generator: x),
        lambda x, c: theta * x * c,
        mg.Average(1),
        parameters=[theta],
    )
    x0, context = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([10.0, 20.0, 30.0]).double()
    sampler = _levels.Sampler(gradient, x0, (context,), rng(), replicates=30, least=5)
    seen = []

    def plan(chains: int) -> Lengths:
        seen.append(chains)
        lengths = torch.where(torch.arange(chains) == 1, length, 1)[:, None]
        return Lengths(torch.zeros(chains, dtype=torch.int64), lengths, 1.0 / lengths.double())

    found = sampler.draw(plan, length)
    assert seen == calls
    assert (found.count, found.length) == (sum(calls), length)
    assert found.mean.tolist() == pytest.approx([(10.0 + 40.0 + 90.0) / 3])
