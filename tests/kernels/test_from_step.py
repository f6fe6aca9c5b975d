from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import FromStep
from tests.chains import run

PLAN = mg.Average(4).draw(3, 1, torch.Generator())


def test_the_argument_is_called_step() -> None:
    kernel = FromStep(step=lambda x, generator: x + 1.0)
    assert run(kernel, torch.zeros(3), PLAN)[1].last.tolist() == [4.0, 4.0, 4.0]


def test_randomness_comes_from_the_generator() -> None:
    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        return torch.rand(x.shape, generator=generator)

    first, second, other = (
        run(FromStep(step), torch.zeros(3), PLAN, seed=s)[1].last for s in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_state_that_becomes_nan_is_refused_and_counted() -> None:
    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        return torch.where(x == 2.0, math.nan, x + 1.0)

    _, outcome = run(FromStep(step), torch.zeros(3), PLAN)
    assert outcome.last.tolist() == [2.0, 2.0, 2.0]
    assert outcome.invalid == 6
    assert outcome.accepted == 6


def test_a_single_coordinate_that_becomes_nan_is_enough() -> None:
    def step(x: Tensor, generator: torch.Generator) -> Tensor:
        return torch.stack([x[:, 0] + 1.0, torch.where(x[:, 0] == 2.0, math.nan, 0.0)], 1)

    _, outcome = run(FromStep(step), torch.zeros(3, 2), PLAN)
    assert outcome.last.tolist() == [[2.0, 0.0]] * 3
    assert outcome.invalid == 6


def test_complex_states_are_states() -> None:
    """A rotation by 60°: neither truncated to integers nor merged; NaN in one part is refused."""
    turn = torch.tensor(math.pi / 3.0, dtype=torch.float64)
    turn = torch.polar(torch.ones_like(turn), turn)
    x0 = torch.tensor([1.0 + 0.0j, 0.5 - 0.25j, 2.0j], dtype=torch.complex128)
    measure, outcome = run(FromStep(lambda x, generator: turn * x), x0, PLAN)
    for chain in range(3):
        mine = measure.points[measure.owner == chain]
        assert torch.allclose(mine, torch.stack([x0[chain] * turn**i for i in range(1, 5)]))
    assert torch.allclose(measure.coefficient, torch.full((12,), 0.25, dtype=torch.float64))
    assert (outcome.accepted, outcome.invalid) == (12, 0)
    _, outcome = run(FromStep(lambda x, generator: x + complex(0.0, math.nan)), x0, PLAN)
    assert torch.equal(outcome.last, x0)
    assert (outcome.accepted, outcome.invalid) == (0, 12)


@pytest.mark.parametrize(
    "step", [lambda x, generator: x[:-1], lambda x, generator: x.long(), lambda x, generator: None]
)
def test_states_must_keep_their_shape_and_type(step: Any) -> None:
    with pytest.raises(ValueError, match="step must return states like those it is given"):
        run(FromStep(step), torch.zeros(3), PLAN)


def test_steps_run_without_gradients() -> None:
    theta = torch.ones((), requires_grad=True)
    measure, outcome = run(FromStep(lambda x, generator: x + theta), torch.zeros(3), PLAN)
    assert not measure.points.requires_grad
    assert not outcome.last.requires_grad
