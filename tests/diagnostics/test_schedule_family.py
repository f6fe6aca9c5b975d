"""The estimator that stands for each T: by hand, and against all candidates at every budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from mlmcgrad.diagnostics._decay import Decay, Squared
from mlmcgrad.diagnostics._plan import FamilyMember, Predicted, Truncations, family, stages
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum


@dataclass(frozen=True)
class Far:
    """All that a family asks of a pilot: the way to go, and its longest level."""

    way: float
    highest: int = 3

    def left(self, level: int) -> float:
        return self.way


def line(estimator: Estimator, bias: float, variance: float, cost: float) -> Predicted:
    return Predicted(estimator, Squared(bias, 0.0), variance, cost)


CANDIDATES = [
    line(Average(1), 1.0, 4.0, 1.0),
    line(MLMCSum(8), 0.1, 9.0, 2.0),
    line(MLMCSum(8, base=4), 0.1, 2.0, 5.0),
    line(Average(8), 0.1, 1.0, 8.0),
    line(MLMCSum(32), 0.01, 10.0, 3.0),
    line(MLMC(32, base=2), 0.01, 5.0, 7.0),
]


def found(way: float, simulations: int = 10, present: float = 1.0) -> list[FamilyMember]:
    decay = cast(Decay, Far(way))
    return family(CANDIDATES, decay, simulations=simulations, present=present)


def chosen(rungs: list[FamilyMember]) -> list[Estimator]:
    return [rung.predicted.estimator for rung in rungs]


def test_without_a_way_to_go_it_is_work_times_variance() -> None:
    # At 8: 18, 10 and 8. At 32: 30 and 35.
    assert chosen(found(0.0)) == [Average(1), Average(8), MLMCSum(32)]


def test_with_a_long_way_to_go_it_is_what_costs_least() -> None:
    """The planted bug, the way left out, would take the long average."""
    # F = 10 · 0.1: 20, 15 and 16 at 8.
    assert chosen(found(0.1)) == [Average(1), MLMCSum(8, base=4), MLMCSum(32)]
    # F = 10 · 10: 218, 510 and 808.
    assert chosen(found(10.0)) == [Average(1), MLMCSum(8), MLMCSum(32)]
    # Nothing was done yet.
    assert chosen(found(10.0, simulations=0)) == chosen(found(0.0))


@pytest.mark.parametrize("way", [0.0, 0.05, 0.3, 20.0])
@pytest.mark.parametrize("budget", [1.0, 30.0, 1e3, 1e6])
def test_no_candidate_is_better_than_the_family_at_any_budget(way: float, budget: float) -> None:
    def error(each: Predicted) -> float:
        return each.bias.value + each.cost * (each.variance + 10 * way) / budget

    best = min(error(rung.predicted) for rung in found(way))
    assert best == min(map(error, CANDIDATES))


def test_the_shortest_is_the_present_one() -> None:
    assert [rung.truncation for rung in found(0.0)] == [1.0, 8.0, 32.0]
    assert [rung.truncation for rung in found(0.0, present=4.0)] == [8.0, 32.0]
    assert [rung.truncation for rung in found(0.0, present=64.0)] == [32.0]  # nothing is longer
    assert found(0.7)[0].left == 0.7


def test_what_a_pilot_cannot_know_is_left_out() -> None:
    more = [
        *CANDIDATES,
        line(Average(4, burn_in=4), 0.0, 0.1, 1.0),
        line(MLMCSum(64), 0.0, 0.1, 1.0),
    ]
    decay = cast(Decay, Far(0.0))  # its longest simulation is 8: 32 is believed, 64 is not
    assert chosen(family(more, decay, simulations=1)) == chosen(found(0.0))


def test_stages_have_the_schedule() -> None:
    rungs = found(0.0)
    made = stages(rungs, Truncations(((1, 1.0), (10, 8.0), (50, 32.0))))
    assert made.steps == ((1, Average(1)), (10, Average(8)), (50, MLMCSum(32)))


def test_a_truncation_of_an_earlier_schedule_that_no_rung_has() -> None:
    made = stages(found(0.0), Truncations(((1, 4.0), (5, 16.0), (9, 128.0))))
    assert made.steps == ((1, Average(4)), (5, Average(16)), (9, MLMCSum(128)))
