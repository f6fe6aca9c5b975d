from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mlmcgrad.optim._base import FRACTION, NON_NEGATIVE, POSITIVE_OR_INFINITE, usable


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


def test_the_norm_is_bounded_by_the_sum_of_norms() -> None:
    """Of (3, 4), 12 and 84, whose norm is 85; one of them has another type."""
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([12.0]), torch.tensor(84.0).double()]
    params = [torch.zeros_like(gradient) for gradient in gradients]
    for p, gradient in zip(params, gradients, strict=True):
        p.grad = gradient
    assert usable([{"params": params[:1]}, {"params": params[1:]}])[1] == 5.0 + 12.0 + 84.0


def test_norms_are_added_in_double_precision() -> None:
    params = [torch.zeros(1) for _ in range(3)]
    for p, size in zip(params, (2.0**24, 1.0, 1.0), strict=True):
        p.grad = torch.tensor([size])
    assert usable([{"params": params}])[1] == 2.0**24 + 2.0


def test_a_bad_gradient_is_found_behind_a_parameter_without_one() -> None:
    a, b = torch.ones(2), torch.ones(3)
    b.grad = torch.tensor([1.0, math.nan, math.inf])
    with pytest.raises(FloatingPointError, match=r"of parameter 1 .* has 2 entries"):
        usable([{"params": [a, b]}])


def test_gradients_whose_squares_overflow_are_finite() -> None:
    a, b = torch.ones(2), torch.ones(2, dtype=torch.float64)
    a.grad, b.grad = torch.full((2,), 1e30), torch.full((2,), 1e300, dtype=torch.float64)
    (chosen,), norm = usable([{"params": [a, b]}])
    assert len(chosen) == 2
    assert norm > 1e30
