"""Stages do at each iteration exactly what their estimator of that iteration does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mlmcgrad as mg
from mlmcgrad.estimators import Stages
from tests.chains import rng

STEPS: tuple[tuple[int, Any], ...] = (
    (1, mg.Average(1)),
    (10, mg.MLMCSum(mg.schedules.power(1.0, 0.5), 0.4, base=2)),
    (100, mg.MLMC(64, base=4)),
)


@pytest.mark.parametrize(("n", "stage"), [(1, 0), (9, 0), (10, 1), (99, 1), (100, 2), (10**6, 2)])
def test_it_is_the_estimator_of_its_stage(n: int, stage: int) -> None:
    stages, estimator = Stages(STEPS), STEPS[stage][1]
    assert stages.at(n) is estimator
    assert stages.longest(n) == estimator.longest(n)
    assert stages.expected_length(n) == estimator.expected_length(n)
    found, same = stages.draw(50, n, rng()), estimator.draw(50, n, rng())
    assert torch.equal(found.terms, same.terms)
    assert torch.equal(found.weights, same.weights)


def test_a_gradient_has_the_same_bits() -> None:
    problem = mg.problems.finite_chain(states=6, seed=1)

    def gradient(estimator: mg.estimators.Estimator) -> torch.Tensor:
        made = mg.MarkovGradient(
            problem.kernel(), problem.loss, estimator, parameters=problem.parameters
        )
        (found,), _ = made.gradient(problem.start(20), n=100, generator=rng())
        return found

    assert torch.equal(gradient(Stages(STEPS)), gradient(STEPS[2][1]))


def test_one_stage_needs_no_iteration_and_several_do() -> None:
    assert Stages(STEPS[:1]).longest() == 1
    with pytest.raises(TypeError, match="n must be given, because the estimator has several"):
        Stages(STEPS).longest()
    with pytest.raises(ValueError, match="n must be an integer ≥ 1"):
        Stages(STEPS).longest(0)


@pytest.mark.parametrize("begins", [(), (2,), (1, 1), (1, 5, 4)])
def test_stages_begin_one_after_another(begins: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="steps must begin at iterations that rise from 1 on, got"):
        Stages(tuple((n, mg.Average(1)) for n in begins))
