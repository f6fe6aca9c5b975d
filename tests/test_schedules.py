import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad import schedules


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
    with pytest.raises(ValueError, match="exponent of a schedule must be finite"):
        schedules.power(1.0, bad)


def test_numpy_integers_are_iterations() -> None:
    assert schedules.power(1.0, 0.5)(np.int64(16)) == 4.0
    assert type(schedules.check_iteration(np.int32(3))) is int


def test_a_constant_needs_no_iteration() -> None:
    assert schedules.value_at(8, None, "truncation") == 8.0
    assert schedules.value_at(schedules.constant(8.0), None, "truncation") == 8.0
    assert schedules.value_at(schedules.power(2.0, 0.5), 4, "truncation") == 4.0
    with pytest.raises(TypeError, match="n must be given, because truncation is a schedule"):
        schedules.value_at(schedules.power(2.0, 0.5), None, "truncation")
