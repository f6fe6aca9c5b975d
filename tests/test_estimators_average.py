import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mlmcgrad as mg
from tests.chains import rng


@given(st.integers(1, 40), st.integers(0, 10), st.integers(1, 5))
def test_weights(length: int, burn_in: int, chains: int) -> None:
    plan = mg.Average(length, burn_in).draw(chains, 1, rng())
    assert (plan.longest == burn_in + length).all()
    weights = plan.step_weights(1, burn_in + length)
    assert (weights[:burn_in] == 0.0).all()
    assert (weights[burn_in:] == 1.0 / length).all()
    assert (plan.levels == 0).all()
    totals = (plan.terms * plan.weights).sum(1)  # Σ a_j
    assert (totals - 1.0).abs().max() < 1e-12


def test_schedules_are_read_at_n_and_rounded_down() -> None:
    average = mg.Average(mg.schedules.power(1.0, 0.5), burn_in=mg.schedules.power(0.1, 1.0))
    assert average.draw(2, 26, rng()).longest.tolist() == [5 + 2, 5 + 2]
    assert average.expected_length(26) == 7.0


@pytest.mark.parametrize("length", [0.5, 0.0, -1.0, math.nan, math.inf, 2.0**62])
def test_bad_length(length: float) -> None:
    with pytest.raises(ValueError, match=r"length must be from 1 to 2\^62, got"):
        mg.Average(length).draw(1, 1, rng())


@pytest.mark.parametrize("burn_in", [-1.0, math.nan, math.inf])
def test_bad_burn_in(burn_in: float) -> None:
    with pytest.raises(ValueError, match="burn_in"):
        mg.Average(1, lambda n: burn_in).draw(1, 1, rng())


@pytest.mark.parametrize("name", ["length", "burn_in"])
def test_what_is_no_number_is_refused_at_once(name: str) -> None:
    options: Any = {"length": 4, name: "4"}
    with pytest.raises(TypeError, match=f"{name} must be a number or a schedule"):
        mg.Average(**options)


def test_levels_of_a_plan_are_integers() -> None:
    levels = mg.Average(3).draw(2, None, rng()).levels
    assert (levels.tolist(), levels.dtype) == ([0, 0], torch.int64)
