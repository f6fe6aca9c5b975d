"""The schedule of a plan: when a longer truncation begins to pay, by hand."""

from __future__ import annotations

import math

import pytest

from mlmcgrad import schedules
from mlmcgrad.diagnostics._decay import Squared
from mlmcgrad.diagnostics._plan import FamilyMember, Predicted, Truncations, crossover, truncations
from mlmcgrad.estimators import Average


def line(bias: float, work_variance: float, cost: float) -> Predicted:
    return Predicted(Average(1), Squared(bias, 0.0), work_variance / cost, cost)


def rung(
    truncation: float, bias: float, work_variance: float, cost: float, left: float = 0.0
) -> FamilyMember:
    return FamilyMember(truncation, line(bias, work_variance, cost), left)


FAMILY = [
    rung(1.0, 1.0, 1.0, 1.0, left=1.0),
    rung(4.0, 0.25, 7.0, 2.0, left=0.5),
    rung(16.0, 0.04, 8.0, 3.0, left=0.25),
    rung(64.0, 0.01, 100.0, 4.0, left=0.25),
]


def error(each: FamilyMember, present: FamilyMember, n: int, chains: int, iteration: int) -> float:
    """After the evaluations of n iterations with the present truncation."""
    iterations = n * present.predicted.cost / each.predicted.cost
    noise = each.predicted.variance / chains
    return each.predicted.bias.value + (noise + iteration * present.left) / iterations


def test_crossover_is_where_the_errors_are_equal() -> None:
    short, long = FAMILY[0].predicted, FAMILY[2].predicted
    budget = crossover(short, long)
    assert budget == pytest.approx(7.0 / 0.96)
    assert short.error(budget) == pytest.approx(long.error(budget))
    assert crossover(line(1.0, 2.0, 1.0), line(0.5, 1.0, 1.0)) == 0.0
    assert crossover(line(0.5, 1.0, 1.0), line(1.0, 2.0, 1.0)) == math.inf


@pytest.mark.parametrize("iteration", [0, 1, 50])
def test_no_longer_one_is_better_and_the_step_was_not_too_early(iteration: int) -> None:
    chains = 2
    schedule = truncations(FAMILY, chains, iteration)
    by_length = {each.truncation: i for i, each in enumerate(FAMILY)}
    before = FAMILY[0]
    for n in range(max(1, iteration), 4000):
        present = FAMILY[by_length[schedule(n)]]
        own = error(present, present, n, chains, iteration)
        for later in FAMILY[by_length[schedule(n)] + 1 :]:
            assert error(later, present, n, chains, iteration) >= own * (1.0 - 1e-12), n
        if n > max(1, iteration) and present is not before:
            # An iteration ago it was not better yet.
            assert error(present, before, n - 1, chains, iteration) >= error(
                before, before, n - 1, chains, iteration
            )
        before = present
    assert schedule(10**9) == 64.0


def test_by_hand() -> None:
    """Two chains, without and with a way to go."""
    # 1 to 4: 6/(2 · 0.75) = 4; to 16: 7/(2 · 0.96) = 3.6; to 64: 99/(2 · 0.99) = 50.
    # 16 to 64: 92/(2 · 3 · 0.03) = 511.1.
    assert truncations(FAMILY, 2, 0).steps == ((1, 1.0), (4, 16.0), (512, 64.0))
    # F = 2 · 10 · 1 from 1: to 4 (6 + 20)/1.5 = 17.3, to 16 (7 + 40)/1.92 = 24.5.
    # F = 2 · 10 · 0.5 from 4: to 16 (1 + 10)/(4 · 0.21) = 13.1, so at once.
    # F = 2 · 10 · 0.25 from 16: to 64 (92 + 5)/0.18 = 538.9.
    assert truncations(FAMILY, 2, 10).steps == ((1, 1.0), (18, 16.0), (539, 64.0))


def test_the_way_to_go_keeps_it_short() -> None:
    """The planted bug: noise alone would raise T at once, with all of the gradient left."""
    # One chain has much noise, but many have none: bias 0.01 beside a gradient of 1.
    family = [rung(1.0, 0.01, 1.0, 1.0, left=1.0), rung(8.0, 0.0, 6.0, 3.0, left=1.0)]
    assert truncations(family, 1000, 0).steps == ((1, 8.0),)
    # (2 · 300 · 1000 + 5) / (1000 · 0.01) iterations: until the gradient is of the size of the bias
    assert truncations(family, 1000, 300).steps == ((1, 1.0), (60_001, 8.0))


def test_where_the_short_one_has_arrived_the_long_one_begins_at_once() -> None:
    family = [rung(1.0, 4.0, 5.0, 1.0, left=0.001), rung(8.0, 0.1, 50.0, 3.0, left=3.0)]
    assert truncations(family, 200, 1000).steps == ((1, 8.0),)


def test_one_that_is_always_better_is_there_from_the_start() -> None:
    assert truncations([rung(1.0, 1.0, 2.0, 1.0), rung(2.0, 0.5, 1.0, 1.0)], 1, 1).steps == (
        (1, 2.0),
    )


def test_of_several_that_are_better_at_once_it_takes_the_best() -> None:
    """The longest would have 25 times the error of the second at n = 1."""
    family = [rung(1.0, 9.0, 9.0, 1.0), rung(2.0, 0.1, 1.0, 1.0), rung(4.0, 0.0, 8.9, 1.0)]
    schedule = truncations(family, 1, 1)
    assert schedule(1) == 2.0
    assert schedule.steps == ((1, 2.0), (79, 4.0))  # 7.9 / 0.1


def test_a_schedule_in_steps() -> None:
    root = schedules.power(1.0, 0.5)
    steps = Truncations.of(root)
    for n in (1, 3, 4, 15, 16, 1023, 1024, 10**9):
        assert steps(n) <= root(n) < 2.0 * steps(n)
    assert Truncations.of(steps) is steps
    assert Truncations.of(schedules.constant(20.0)).steps == ((1, 16.0),)
    assert Truncations.of(schedules.constant(0.5)).steps == ((1, 1.0),)
    # It ends somewhere.
    assert Truncations.of(schedules.power(1.0, 3.0)).steps[-1][1] == 2.0**20


def test_without_bias_it_stays_short() -> None:
    schedule = truncations([rung(1.0, 0.0, 1.0, 1.0), rung(2.0, 0.0, 2.0, 1.0)], 1, 1)
    assert schedule(10**12) == 1.0


def test_what_never_comes_is_left_out() -> None:
    schedule = truncations([rung(1.0, 1e-30, 1.0, 1.0), rung(2.0, 0.0, 2.0, 1.0)], 1, 1)
    assert schedule.steps == ((1, 1.0),)


def test_the_longer_of_two() -> None:
    first, second = Truncations(((1, 1.0), (10, 8.0))), Truncations(((1, 2.0), (20, 16.0)))
    both = first.longer(second)
    assert both.steps == ((1, 2.0), (10, 8.0), (20, 16.0))
    assert all(both(n) == max(first(n), second(n)) for n in range(1, 30))
    assert second.longer(first) == both


def test_words_and_iterations() -> None:
    schedule = Truncations(((1, 2.0), (100, 8.0)))
    assert str(schedule) == "T = 2, 8 from n = 100"
    many = Truncations(tuple((n, 2.0**n) for n in range(1, 12)))
    assert str(many).startswith("T = 2, 4 from n = 2, ")
    assert str(many).endswith("128 from n = 7, …")
    with pytest.raises(ValueError, match="n must be an integer"):
        schedule(0)
