from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mlmcgrad.optim._checks import FRACTION, NON_NEGATIVE, POSITIVE_OR_INFINITE, usable


def test_ranges_include_the_right_ends() -> None:
    assert NON_NEGATIVE.check("lr", 0) == 0.0
    assert FRACTION.check("rho", 0.0) == 0.0
    assert POSITIVE_OR_INFINITE.check("clip", math.inf) == math.inf
    for bad in (1.0, -1e-300, math.nan):
        with pytest.raises(ValueError, match=r"rho must be in \[0, 1\), got"):
            FRACTION.check("rho", bad)
    with pytest.raises(ValueError, match=r"lr must be a finite number ≥ 0, got inf at step n=3"):
        NON_NEGATIVE.check("lr", math.inf, " at step n=3")


@pytest.mark.parametrize(
    "bad",
    ["0.1", None, True, 1j, np.bool_(True), torch.tensor(True), torch.tensor([0.1]), np.ones(1)],
)
def test_what_is_not_a_number_is_a_type_error(bad: object) -> None:
    with pytest.raises(TypeError, match="lr must be a number or a schedule"):
        NON_NEGATIVE.check("lr", bad)


def test_a_schedule_where_only_a_number_is_accepted() -> None:
    with pytest.raises(TypeError, match=r"rho must be a number, got .* in param group 0"):
        FRACTION.check("rho", lambda n: 0.5, " in param group 0")


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), torch.tensor(0.5)])
def test_numbers_of_numpy_and_torch_become_floats(number: object) -> None:
    value = NON_NEGATIVE.check("lr", number)
    assert type(value) is float
    assert value == 0.5
    assert type(NON_NEGATIVE.check("lr", np.int64(3))) is float


def test_usable_skips_missing_and_empty_gradients() -> None:
    a, b, c = torch.ones(2), torch.ones(0), torch.ones(3)
    a.grad, b.grad = torch.ones(2), torch.ones(0)
    assert [len(chosen) for chosen in usable([{"params": [a, b, c]}])[0]] == [1]
    assert usable([{"params": [b, c]}]) == ([[]], 0.0)


def test_gradients_whose_squares_overflow_are_finite() -> None:
    a, b = torch.ones(2), torch.ones(2, dtype=torch.float64)
    a.grad, b.grad = torch.full((2,), 1e30), torch.full((2,), 1e300, dtype=torch.float64)
    (chosen,), norm = usable([{"params": [a, b]}])
    assert len(chosen) == 2
    assert norm > 1e30
