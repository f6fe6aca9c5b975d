from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mlmcgrad.optim import Adagrad
from mlmcgrad.optim._base import Supremum
from tests.optim.optim_cases import CASES, parameters, run


def test_supremum_is_right_in_any_order_and_calls_the_schedule_once_in_turn() -> None:
    calls = []

    def schedule(n: int) -> float:
        calls.append(n)
        return float((7 * n) % 5)

    supremum = Supremum(schedule)
    values = [supremum(n) for n in range(1, 10)]
    assert values == [max(float((7 * k) % 5) for k in range(1, n + 1)) for n in range(1, 10)]
    assert supremum(9) == 4.0
    assert calls == list(range(1, 10))
    assert supremum(2) == 4.0
    assert supremum(1) == 2.0


def test_bounds_over_groups_are_the_widest() -> None:
    groups = [{"params": [torch.ones(1)], "eps": 1 / e, "clip": 1.0} for e in (0.5, 2.0)]
    optimizer = Adagrad(groups, lr=0.1)
    assert optimizer.preconditioner_bounds(1) == (0.5, 2.0)
    assert optimizer.preconditioner_bounds(1, group=1) == (2.0, 2.0)
    lower, upper = optimizer.preconditioner_bounds(4)
    assert math.isclose(lower, 5.0**-0.5)
    assert upper == 2.0


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_bounds_count_steps_from_one(n: int) -> None:
    with pytest.raises(ValueError, match="n must be an integer ≥ 1"):
        CASES["Adagrad"](parameters()).preconditioner_bounds(n)


@pytest.mark.parametrize("name", CASES)
def test_steps_may_be_numpy_integers(name: str) -> None:
    optimizer, four = CASES[name](parameters()), np.int32(4)
    assert optimizer.lr_at(four) == optimizer.lr_at(4)
    assert optimizer.preconditioner_bounds(four) == optimizer.preconditioner_bounds(4)


def test_lr_at_is_the_step_size_of_that_step() -> None:
    params = parameters()
    optimizer = CASES["Adagrad"](params)
    assert optimizer.param_groups[0]["lr"] == 0.1  # what step 1 will use
    assert optimizer.lr_at(4) == 0.05
    run(optimizer, params, 1, 4)
    assert optimizer.param_groups[0]["lr"] == 0.05  # what step 4 used
    fixed = CASES["Adagrad"](parameters(), lr=0.3)
    assert fixed.lr_at(9) == 0.3
