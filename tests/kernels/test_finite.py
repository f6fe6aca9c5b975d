from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.kernels import Finite
from tests.chains import random_matrix, rng, run
from tests.statistics import mean_is

PLAN = mg.Average(3).draw(4, 1, torch.Generator())


def test_transition_probabilities() -> None:
    """Null: one step from state a has the law matrix[a]; false alarm 1e-5."""
    matrix = random_matrix(4, seed=5)
    plan = mg.Average(1).draw(40_000, 1, rng())
    for a in range(4):
        _, outcome = run(Finite(matrix), torch.full((40_000,), a), plan, seed=a)
        seen = torch.eye(4, dtype=torch.float64)[outcome.last]
        assert mean_is(seen, matrix[a])
        assert not mean_is(seen, matrix[(a + 1) % 4])


def test_a_state_of_probability_zero_is_never_reached() -> None:
    matrix = torch.tensor([[0.1, 0.9, 0.0], [0.7, 0.3, 0.0], [0.0, 0.0, 1.0]])
    _, outcome = run(
        Finite(matrix), torch.zeros(50_000, dtype=torch.int64), mg.Average(5).draw(50_000, 1, rng())
    )
    assert int(outcome.last.max()) == 1


def test_the_smallest_and_the_largest_uniform_reach_no_state_of_probability_zero() -> None:
    """A row [0, ½, ½, 0], whose sum is 1 up to the tolerance: 0 draws state 1, nearly 1 state 2."""
    for total in (1.0 - 8e-6, 1.0, 1.0 + 8e-6):
        row = torch.tensor([0.0, 0.5 * total, 0.5 * total, 0.0], dtype=torch.float64)
        kernel = Finite(row.expand(4, 4))
        state, _ = kernel.start(torch.zeros(2, dtype=torch.int64), ())
        noise = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
        after, moved, _ = kernel.advance(state, noise, ())
        assert after.x.tolist() == [1, 2]
        assert moved.tolist() == [True, True]


def test_the_matrix_may_depend_on_parameters_and_on_the_chain() -> None:
    theta = torch.zeros(2, requires_grad=True)
    asked: list[Tensor] = []

    def matrix(target: Tensor) -> Tensor:
        asked.append(theta.detach().clone())
        goal = torch.eye(3)[target]  # each chain jumps to its own target
        return (goal + 0.0 * theta.sum())[:, None, :].expand(-1, 3, 3)

    target = torch.tensor([2, 0, 1, 2])
    _, outcome = run(Finite(matrix), torch.zeros(4, dtype=torch.int64), PLAN, (target,))
    assert torch.equal(outcome.last, target)
    assert len(asked) == 1  # once for an estimate, not once a step


def test_repeated_states_are_merged() -> None:
    measure, _ = run(
        Finite(random_matrix(3, 0)),
        torch.zeros(4, dtype=torch.int64),
        mg.Average(200).draw(4, 1, rng()),
    )
    assert len(measure) <= 2 * 3 * 4  # per block at most one point a state, and the stay at its end


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.tensor([[0.5, 0.6], [0.5, 0.5]]), "rows that sum to 1"),
        (torch.tensor([[1.5, -0.5], [0.5, 0.5]]), "not negative"),
        (torch.tensor([[math.nan, 1.0], [0.5, 0.5]]), "finite"),
        (torch.ones(2, 3) / 3, "square"),
        (torch.ones(4, 2, 3) / 3, "square"),
        (torch.ones(0, 0), "square"),
        (torch.ones(2), "shape"),
        ([[1.0]], "tensor of shape"),
    ],
)
def test_bad_matrices(matrix: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(Finite(lambda: matrix), torch.zeros(4, dtype=torch.int64), PLAN)
    if isinstance(matrix, Tensor):
        with pytest.raises(ValueError, match=message):
            Finite(matrix)


@pytest.mark.parametrize(
    ("x0", "message"),
    [
        (torch.zeros(4), "x0 must be int64 or int32 of shape"),
        (torch.zeros(4, 1, dtype=torch.int64), "x0 must be int64 or int32 of shape"),
        (torch.zeros(4, dtype=torch.uint8), r"got torch.uint8.*use x0.long\(\)"),
        (torch.zeros(4, dtype=torch.int8), r"got torch.int8.*use x0.long\(\)"),
        (torch.tensor([0, 1, 2, 3]), "states between 0 and 2, got 0 … 3"),
        (torch.tensor([0, 1, 2, -1]), "states between 0 and 2"),
    ],
)
def test_bad_states(x0: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(Finite(random_matrix(3, 0)), x0, PLAN)


def test_one_matrix_per_chain_or_one_for_all() -> None:
    with pytest.raises(ValueError, match="one for each of the 4 chains"):
        run(Finite(lambda: torch.eye(3).expand(5, 3, 3)), torch.zeros(4, dtype=torch.int64), PLAN)
