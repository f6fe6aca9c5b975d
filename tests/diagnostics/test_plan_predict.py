"""Predictions of a large pilot are the exact bias, variance and cost of every kind of estimator."""

from __future__ import annotations

import math

import pytest
import torch

from mlmcgrad import schedules
from mlmcgrad.diagnostics._decay import Decay
from mlmcgrad.diagnostics._pilot import Pilot, Simulator, run_pilot
from mlmcgrad.diagnostics._plan import Cost, combinations, predict
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum
from tests.diagnostics.planned import Known, finite

ESTIMATORS = [
    Average(1),
    Average(8),
    Average(4, burn_in=4),
    MLMC(16),
    MLMC(32, base=4),
    MLMCSum(32),
    MLMCSum(64, 0.6, base=2),
    MLMC(512),  # beyond the pilot
    MLMCSum(512, 0.6),
    Average(512),
    Average(512, burn_in=512),
]


@pytest.fixture(scope="module")
def found() -> tuple[Known, Pilot]:
    known = finite(6, 1)
    rng = torch.Generator().manual_seed(0)
    return known, run_pilot(Simulator(known.gradient, known.x0, (), rng), 2e6, longest=128)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_bias_variance_and_cost(found: tuple[Known, Pilot], estimator: Estimator) -> None:
    known, measured = found
    mine = predict(estimator, Decay(measured), Cost(0.0, 1.0))
    bias, variance, steps = known.exact.moments(estimator)
    assert mine.cost == pytest.approx(steps, rel=1e-9)
    assert mine.variance == pytest.approx(variance, rel=0.1)
    assert abs(mine.bias.value - bias) < max(5.0 * mine.bias.se, 1e-3 * variance)


def test_without_the_variance_between_levels_it_would_be_wrong(found: tuple[Known, Pilot]) -> None:
    """The planted bug: levels have different means, which is part of the variance."""
    known, measured = found

    class Blind(Decay):
        def products(self, level: int) -> torch.Tensor:
            return torch.zeros_like(super().products(level))

    _, variance, _ = known.exact.moments(MLMCSum(16))
    assert predict(MLMCSum(16), Blind(measured), Cost(0.0, 1.0)).variance < 0.85 * variance
    assert predict(MLMCSum(16), Decay(measured), Cost(0.0, 1.0)).variance > 0.93 * variance


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_combinations_are_those_of_the_estimator(estimator: Estimator) -> None:
    every = combinations(estimator)
    assert math.fsum(p for p, _, _ in every) == pytest.approx(1.0, abs=1e-12)
    # H = 1 has the estimate 1 on average.
    assert math.fsum(p * math.fsum(a) for p, _, a in every) == pytest.approx(1.0, abs=1e-12)
    assert math.fsum(p * lengths[-1] for p, lengths, _ in every) == pytest.approx(
        estimator.expected_length(), rel=1e-12
    )


def test_what_cannot_be_predicted_is_said() -> None:
    with pytest.raises(ValueError, match="powers of two"):
        combinations(Average(3))
    with pytest.raises(TypeError, match="n must be given"):
        combinations(Average(schedules.power(1.0, 0.5)))


def test_errors_of_a_budget(found: tuple[Known, Pilot]) -> None:
    mine = predict(Average(4), Decay(found[1]), Cost(1.0, 2.0))
    assert mine.cost == 9.0
    assert mine.error(90.0) == pytest.approx(mine.bias.value + mine.variance / 10.0)
    accuracy = 2.0 * math.sqrt(mine.bias.cautious)
    needed = mine.needed(accuracy)
    assert mine.bias.cautious + mine.work_variance / needed == pytest.approx(accuracy**2)
    assert mine.needed(0.9 * math.sqrt(mine.bias.cautious)) == math.inf
