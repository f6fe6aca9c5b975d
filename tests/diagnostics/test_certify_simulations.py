"""Simulations in parts: they go on from where they are, and count what they spend."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.diagnostics._certify import Simulations
from mlmcgrad.diagnostics._checks import (
    DIRECTIONS,
    Segment,
    Setting,
    features,
    projection,
    unbiased,
)
from mlmcgrad.diagnostics._pilot import Simulator
from mlmcgrad.kernels import Importance
from tests.chains import rng


def steps_of_one() -> mg.MarkovGradient:
    """X_i = X_{i−1} + 1 and H(x) = x."""
    theta = torch.ones(1, dtype=torch.float64, requires_grad=True)
    kernel = mg.kernels.FromStep(lambda x, *_, generator: x + 1.0)
    return mg.MarkovGradient(kernel, lambda x, *_: theta * x, mg.Average(1), parameters=[theta])


def test_chains_go_on_and_parts_are_averages() -> None:
    simulations = Simulations(
        Setting(steps_of_one(), torch.tensor([0.0, 10.0]).double(), (), rng())
    )
    first = simulations.segment(4)
    assert first.estimates.tolist() == [[2.5], [12.5]]
    assert first.states.tolist() == [[1.0, 11.0], [2.0, 12.0], [3.0, 13.0], [4.0, 14.0]]
    assert (simulations.evaluations, simulations.length, simulations.moved) == (8, 4, 8.0)
    second = simulations.segment(64)
    assert second.estimates[0].item() == pytest.approx(4.0 + 32.5)
    assert second.states[:, 0].tolist() == [4.0 + 2.0 * i for i in range(1, 33)]
    assert (simulations.evaluations, second.evaluations) == (8 + 128, 128)
    assert simulations.length == 68
    joined = first.joined(second)
    assert joined.estimates[0].item() == pytest.approx((2.5 + 36.5) / 2.0)
    assert len(joined.states) == 36


def test_large_states_are_kept_at_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlmcgrad.diagnostics._certify._NUMBERS", 10)
    simulations = Simulations(Setting(steps_of_one(), torch.zeros(2).double(), (), rng()))
    assert simulations.segment(8).states[:, 0].tolist() == [1.0, 3.0, 5.0, 7.0]


def test_a_kernel_with_a_model_counts_its_evaluations() -> None:
    problem = problems.gaussian()
    kernel = mg.kernels.MALA(problem.log_density, 0.5)
    gradient = mg.MarkovGradient(kernel, problem.loss, mg.Average(1), parameters=problem.parameters)
    simulations = Simulations(Setting(gradient, problem.start(3), (), rng()))
    simulations.segment(2)  # two runs of one step, each with its start
    assert simulations.evaluations == 3 * 4


def weighing(candidates: int = 4) -> mg.MarkovGradient:
    """Target N(1, 1), proposal N(0, 1), H(z) = z."""
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def draw(rows: int, y: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, dtype=torch.float64, generator=generator)

    kernel = Importance(lambda z, y: z, draw, candidates)
    return mg.MarkovGradient(kernel, lambda z, y: theta * z, mg.Average(1), parameters=[theta])


def test_importance_sampling_is_the_unbiased_sum_form() -> None:
    gradient, y = weighing(), torch.zeros(50)
    simulations = Simulations(Setting(gradient, None, (y,), rng(3)))
    part = simulations.segment(8)
    plan = unbiased(gradient.kernel, 8).draw(50, None, again := rng(3))
    expected, _ = Simulator(gradient, None, (y,), again).simulate(plan)
    assert torch.equal(part.estimates, expected)
    assert part.states.shape == (1, 50)
    assert simulations.evaluations == 4 * int(plan.longest.sum())
    simulations.segment(8)  # there is nothing to go on from


def test_the_sum_form_has_no_truncation_but_memory() -> None:
    form = unbiased(weighing().kernel, 8)
    assert form.truncation == math.inf
    assert form.base == 8
    assert form.max_transitions == 2**20
    assert unbiased(weighing(10**6).kernel, 8).max_transitions == 100
    assert unbiased(weighing(10**8).kernel, 8).max_transitions == 8


def test_the_deviation_is_that_within_targets() -> None:
    states = torch.tensor([[0.0, 4.0, 100.0, 106.0]], dtype=torch.float64)
    part = Segment(torch.zeros(4, 1), torch.cat([7.0 + states, states]))
    target = torch.tensor([[0], [0], [1], [1]])
    simulations = Simulations(Setting(steps_of_one(), states[0], (target,), rng()))
    assert simulations.deviation(part).item() == pytest.approx(math.sqrt((8.0 + 18.0) / 2.0))


def test_a_gradient_that_is_not_finite_is_named() -> None:
    theta = torch.ones(1, dtype=torch.float64, requires_grad=True)
    kernel = mg.kernels.FromStep(lambda x, generator: x - 1.0)
    gradient = mg.MarkovGradient(
        kernel, lambda x: theta * x.sqrt(), mg.Average(1), parameters=[theta]
    )
    simulations = Simulations(Setting(gradient, torch.ones(2).double(), (), rng()))
    with pytest.raises(FloatingPointError, match="is NaN or infinite at a simulated state"):
        simulations.segment(2)


def test_features() -> None:
    x = torch.tensor([[[1.0], [2.0]], [[3.0], [5.0]]])
    assert features(x).tolist() == [[1.0, 2.0, 1.0, 4.0], [3.0, 5.0, 9.0, 25.0]]
    centre = torch.tensor([1.0, 1.0], dtype=torch.float64)
    assert features(x, centre).tolist() == [[1.0, 2.0, 0.0, 1.0], [3.0, 5.0, 4.0, 16.0]]
    assert features(torch.tensor([2, 3])).tolist() == [[2.0, 4.0], [3.0, 9.0]]
    part = Segment(torch.zeros(2, 1), torch.stack([x, 3.0 * x]))
    assert part.features()[0].tolist() == [2.0, 4.0, 5.0, 20.0]
    many = torch.rand(3, 100, dtype=torch.float64, generator=rng())
    found = features(many)
    assert found.shape == (3, 2 * DIRECTIONS)
    torch.testing.assert_close(found[:, :DIRECTIONS], many @ projection(100, DIRECTIONS))
