import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad import schedules
from mlmcgrad.levels import Geometric, Tabulated
from mlmcgrad.schedules import floor
from mlmcgrad.theory import Ergodicity
from mlmcgrad.theory.estimator_constants import bias_bound


@given(st.floats(0.01, 100.0), st.floats(-2.0, 2.0), st.integers(1, 10**6))
def test_power_is_its_formula(c: float, exponent: float, n: int) -> None:
    assert schedules.power(c, exponent)(n) == pytest.approx(c * n**exponent, rel=1e-12)
    assert schedules.power(c, exponent)(1) == c
    assert schedules.constant(c)(n) == c


def test_a_number_stands_for_a_constant_and_a_callable_for_itself() -> None:
    assert schedules.as_schedule(3, "lr")(17) == 3.0

    def mine(n: int) -> float:
        return 1.0 / n

    assert schedules.as_schedule(mine, "lr") is mine


@pytest.mark.parametrize("value", ["0.1", None, True, [1.0]])
def test_anything_else_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match="truncation must be a number or a schedule"):
        schedules.as_schedule(value, "truncation")


@pytest.mark.parametrize("n", [0, -1, 1.0, True])
def test_iterations_count_from_one(n: Any) -> None:
    with pytest.raises(ValueError, match="n must be an integer ≥ 1"):
        schedules.power(1.0, 0.5)(n)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_schedule_is_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="exponent must be a finite number"):
        schedules.power(1.0, bad)


def test_numpy_integers_are_iterations() -> None:
    assert schedules.power(1.0, 0.5)(np.int64(16)) == 4.0
    assert schedules.power(1.0, 0.5)(np.int32(4)) == 2.0


def test_a_constant_needs_no_iteration() -> None:
    assert schedules.value_at(8, None, "truncation") == 8.0
    assert schedules.value_at(schedules.constant(8.0), None, "truncation") == 8.0
    assert schedules.value_at(schedules.power(2.0, 0.5), 4, "truncation") == 4.0
    with pytest.raises(TypeError, match="n must be given, because truncation is a schedule"):
        schedules.value_at(schedules.power(2.0, 0.5), None, "truncation")


@pytest.mark.parametrize("n", [1, 3, 93, 99, 123, 246])
def test_what_rounding_left_below_an_integer_counts_as_that_integer(n: int) -> None:
    assert floor(float(n)) == n
    assert floor(math.nextafter(n, 0.0)) == n
    assert floor(math.nextafter(n, math.inf)) == n
    assert floor(1.0 / (1.0 / n)) == n
    assert floor(n + 0.999) == n
    assert floor(n - 1e-9) == n - 1


def test_powers_of_two_are_exact_as_far_as_they_go() -> None:
    assert [floor(2.0**k) for k in range(63)] == [2**k for k in range(63)]
    assert all(Geometric().length(k) == 2**k for k in range(1, 63))


@pytest.mark.parametrize("n", [93, 99, 246])
def test_levels_and_theory_have_the_same_lengths(n: int) -> None:
    """1/(1/n) is just below n for these n: a level of length n, in sampling and in the bound."""
    law = Tabulated([1.0 / n] * n)
    assert 1.0 / (1.0 / n) < n
    assert law.length(1) == law.length(n) == n
    assert law.truncation_level(n - 0.5) == 0
    chain = Ergodicity(zeta=1.0, alpha=0.5, beta=2.0)
    assert bias_bound(1, chain, truncation=n, pmf=law.probabilities) == pytest.approx(4.0 / n)


@given(st.floats(1e-3, 10.0), st.integers(1, 10**6), st.floats(0.01, 1.0))
def test_a_decay_is_its_formula(value: float, total: int, decay: float) -> None:
    linear = schedules.constant_then_linear(value, total, decay)
    begin = linear.begin
    assert begin == math.floor((1.0 - decay) * total + 1e-12 * total)
    assert linear(1) == value
    assert linear(max(begin, 1)) == value
    assert linear(begin + 1) == value
    for n in {min(begin + 2, total), total}:
        x = (n - 1 - begin) / (total - begin)
        assert linear(n) == pytest.approx(value * (1.0 - x), rel=1e-9)
        half = schedules.cosine(value, total, decay)(n)
        assert half == pytest.approx(value * (0.5 + 0.5 * math.cos(math.pi * x)), abs=1e-9 * value)
    assert linear(total) > 0.0
    assert linear(total + 1) == linear(2 * total + 1) == 0.0
    assert schedules.cosine(value, total, decay)(total + 1) == 0.0


def test_the_decay_of_a_third_begins_after_two_thirds() -> None:
    for total in (3, 300, 3 * 10**6):
        assert schedules.constant_then_linear(1.0, total).begin == 2 * total // 3
    assert schedules.cosine(1.0, 100).begin == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.nan, 10), "value must be a finite number"),
        ((1.0, 0), "total must be an integer ≥ 1"),
        ((1.0, 10, 0.0), r"decay must be in \(0, 1\], a share of total, got 0.0"),
        ((1.0, 10, 1.5), r"decay must be in \(0, 1\], a share of total, got 1.5"),
    ],
)
def test_a_decay_checks_its_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedules.constant_then_linear(*arguments)
    with pytest.raises(ValueError, match="shape must be 'linear' or 'cosine'"):
        schedules.ConstantThenDecay(1.0, 10, 0.5, "steps")  # type: ignore[arg-type]
