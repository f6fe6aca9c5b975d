"""The schedule of a plan goes up the lower envelope."""

from __future__ import annotations

import math

import pytest

from mlmcgrad.diagnostics.approach import Squared
from mlmcgrad.diagnostics.predicted import Predicted
from mlmcgrad.diagnostics.truncations import Truncations, crossover, truncations
from mlmcgrad.estimators import Average


def line(bias: float, work_variance: float, cost: float) -> Predicted:
    return Predicted(Average(1), Squared(bias, 0.0), work_variance / cost, cost)


FAMILY = [
    (1.0, line(1.0, 1.0, 1.0)),
    (4.0, line(0.25, 7.0, 2.0)),
    (16.0, line(0.04, 8.0, 3.0)),
    (64.0, line(0.01, 100.0, 4.0)),
]


def test_crossover_is_where_the_errors_are_equal() -> None:
    short, long = FAMILY[0][1], FAMILY[2][1]
    budget = crossover(short, long)
    assert budget == pytest.approx(7.0 / 0.96)
    assert short.error(budget) == pytest.approx(long.error(budget))
    assert crossover(line(1.0, 2.0, 1.0), line(0.5, 1.0, 1.0)) == 0.0
    assert crossover(line(0.5, 1.0, 1.0), line(1.0, 2.0, 1.0)) == math.inf


def test_every_iteration_has_the_best_truncation() -> None:
    chains = 2
    schedule = truncations(FAMILY, chains)
    spent = 0.0
    for n in range(1, 2000):
        length = schedule(n)
        if spent > 0.0:
            best = min(FAMILY, key=lambda pair: pair[1].error(spent))
            assert length == best[0], n
        spent += chains * dict(FAMILY)[length].cost
    assert schedule(10**9) == 64.0
    assert [t for _, t in schedule.steps] == [1.0, 16.0, 64.0]  # 4 is never best


def test_one_that_is_always_better_is_there_from_the_start() -> None:
    schedule = truncations([(1.0, line(1.0, 2.0, 1.0)), (2.0, line(0.5, 1.0, 1.0))], 1)
    assert schedule.steps == ((1, 2.0),)


def test_without_bias_it_stays_short() -> None:
    schedule = truncations([(1.0, line(0.0, 1.0, 1.0)), (2.0, line(0.0, 2.0, 1.0))], 1)
    assert schedule(10**12) == 1.0


def test_what_never_comes_is_left_out() -> None:
    schedule = truncations([(1.0, line(1e-30, 1.0, 1.0)), (2.0, line(0.0, 2.0, 1.0))], 1)
    assert schedule.steps == ((1, 1.0),)


def test_words_and_iterations() -> None:
    schedule = Truncations(((1, 2.0), (100, 8.0)))
    assert str(schedule) == "T = 2, 8 from n = 100"
    many = Truncations(tuple((n, 2.0**n) for n in range(1, 12)))
    assert str(many).startswith("T = 2, 4 from n = 2, ")
    assert str(many).endswith("128 from n = 7, …")
    with pytest.raises(ValueError, match="n must be an integer"):
        schedule(0)
