"""The expectation of a gradient: that of the long chain, with any assignment and thinning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad import problems
from mlmcgrad.levels import Assignment
from tests.chains import average_law, random_matrix, rng, unit
from tests.statistics import deviations, mean_is
from tests.test_gradient import coin, weights, zeros


@pytest.mark.parametrize("assignment", ["independent", "shared", "balanced"])
@pytest.mark.parametrize("states", [2, 3, 4, 5, 6])
def test_signed_occupation_measure(states: int, assignment: Assignment) -> None:
    """Null: its mean is the average of P^1 … P^{2^κ} from x0; 4.5 standard errors of the calls."""
    matrix, theta = random_matrix(states, seed=states), weights(states)
    gradient = mg.MarkovGradient(
        mg.kernels.Finite(matrix), lambda x: theta[x], mg.MLMC(20, assignment=assignment)
    )
    generator = rng(states)
    calls = [
        gradient.gradient(zeros(100), n=1, generator=generator)[0][0] for _ in range(400)
    ]  # independent over calls, whatever the assignment
    exact = average_law(matrix, unit(states), 16)
    assert (deviations(torch.stack(calls), exact) < 4.5).all()
    wrong = average_law(matrix, unit(states), 1)  # planted bug: only the base term
    assert not (deviations(torch.stack(calls), wrong) < 4.5).all()


def test_boltzmann_gradient_has_the_bias_of_the_long_chain() -> None:
    """Null: from the data, MLMC at T = 8 has the mean of 8 Gibbs steps; false alarm 1e-5."""
    model = problems.boltzmann()
    gradient = mg.MarkovGradient(model.kernel(), model.loss, mg.MLMC(8))
    generator, start = rng(2), model.start(120)
    rows = [
        torch.cat([g.flatten() for g in _ordered(gradient, model, start, generator)])
        for _ in range(300)
    ]
    weight = 2.0 ** torch.arange(4, dtype=torch.float64)
    law = torch.eye(16, dtype=torch.float64)[(model.data @ weight).long()].mean(0)
    exact = average_law(model.transition(), law, 8)
    per_state = [
        torch.cat(
            [g.flatten() for g in torch.autograd.grad(model.loss(v[None]).sum(), model.parameters)]
        )
        for v in model.states()
    ]
    assert mean_is(torch.stack(rows), exact @ torch.stack(per_state))
    short = average_law(model.transition(), law, 1)
    assert not mean_is(torch.stack(rows), short @ torch.stack(per_state))


def _ordered(
    gradient: mg.MarkovGradient, model: problems.Boltzmann, x0: Tensor, generator: torch.Generator
) -> list[Tensor]:
    tensors, estimate = gradient.gradient(x0, n=1, generator=generator)
    by_id = {id(p): g for p, g in zip(estimate.parameters, tensors, strict=True)}
    return [by_id[id(p)] for p in model.parameters]


def test_thinning_keeps_the_mean_and_saves_work() -> None:
    """Null: with and without thinning the gradient has the exact mean; false alarm 1e-5 each."""
    matrix = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    exact, spent = average_law(matrix, unit(2), 8), []
    for thinning in (0.0, 0.4):
        gradient, generator = coin(weights(), mg.Average(8), thinning=thinning), rng(4)
        calls, evaluations = [], 0
        for _ in range(400):
            (g,), estimate = gradient.gradient(zeros(20), n=1, generator=generator)
            calls.append(g)
            evaluations += estimate.loss_evaluations
        assert mean_is(torch.stack(calls), exact)
        spent.append(evaluations)
    assert spent[1] < 0.85 * spent[0]
