"""The range checks: what is returned, the last value inside, the first outside, and the words."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from mlmcgrad import _checks

SMALLEST = math.ulp(0.0)
BELOW_1 = math.nextafter(1.0, 0.0)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (_checks.number, -3.5),
        (_checks.number, 0),
        (_checks.positive, SMALLEST),
        (_checks.positive, 1e300),
        (_checks.non_negative, 0.0),
        (_checks.fraction, 0.0),
        (_checks.fraction, BELOW_1),
        (_checks.number, np.float32(0.5)),
        (_checks.number, torch.tensor(0.25)),
        (_checks.number, Fraction(1, 2)),
    ],
)
def test_numbers_inside_come_back_as_floats(check: Callable[..., float], value: Any) -> None:
    found = check(value, "x")
    assert type(found) is float
    assert found == float(value)


@pytest.mark.parametrize("value", [1, 7, np.int64(7)])
def test_integers_come_back_as_int(value: Any) -> None:
    found = _checks.whole(value, "x")
    assert type(found) is int
    assert found == int(value)
    assert _checks.whole(0, "x", 0) == 0
    assert _checks.whole(5, "x", 1, 5) == 5


@pytest.mark.parametrize(
    ("check", "value", "error", "message"),
    [
        (_checks.number, math.nan, ValueError, "x must be a finite number, got nan"),
        (_checks.number, -math.inf, ValueError, "x must be a finite number, got -inf"),
        (_checks.number, "1", TypeError, "x must be a number, got '1'"),
        (_checks.number, True, TypeError, "x must be a number, got True"),
        (_checks.number, None, TypeError, "x must be a number, got None"),
        (_checks.positive, 0.0, ValueError, "x must be positive, got 0.0"),
        (_checks.positive, -1, ValueError, "x must be positive, got -1"),
        (_checks.non_negative, -SMALLEST, ValueError, "x must be ≥ 0, got -5e-324"),
        (_checks.fraction, 1.0, ValueError, r"x must be in \[0, 1\), got 1.0"),
        (_checks.fraction, -SMALLEST, ValueError, r"x must be in \[0, 1\), got -5e-324"),
        (_checks.whole, 0, ValueError, "x must be an integer ≥ 1, got 0"),
        (_checks.whole, 1.0, ValueError, "x must be an integer ≥ 1, got 1.0"),
        (_checks.whole, True, ValueError, "x must be an integer ≥ 1, got True"),
        (lambda v, name: _checks.whole(v, name, 3), 2, ValueError, "x must be an integer ≥ 3"),
        (
            lambda v, name: _checks.whole(v, name, 1, 5),
            6,
            ValueError,
            "x must be an integer from 1",
        ),
    ],
)
def test_the_first_value_outside_is_refused(
    check: Callable[..., Any], value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        check(value, "x")
