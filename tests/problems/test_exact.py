"""Exact answers of the problems, each against an independent way to get it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from mlmcgrad import problems
from mlmcgrad.estimators import Average
from tests.chains import average_law, rng, run, unit
from tests.statistics import mean_is


def _numeric(
    problem: problems.FiniteChain | problems.LinearGaussian | problems.Boltzmann,
) -> Tensor:
    """∇V by central differences of the objective."""
    slopes = []
    for parameter in problem.parameters:
        flat = parameter.detach().view(-1)
        for i in range(len(flat)):
            value = float(flat[i])
            ends = []
            for shift in (1e-5, -1e-5):
                flat[i] = value + shift
                ends.append(problem.objective())
            flat[i] = value
            slopes.append((ends[0] - ends[1]) / 2e-5)
    return torch.tensor(slopes, dtype=torch.float64)


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_are_slopes_of_the_objective(seed: int) -> None:
    for problem in (
        problems.finite_chain(seed=seed),
        problems.linear_gaussian(seed=seed),
        problems.boltzmann(seed=seed),
    ):
        assert torch.allclose(_flat(problem.exact_gradient()), _numeric(problem), atol=1e-7)


@pytest.mark.parametrize("states", [2, 3, 8])
def test_finite_chain(states: int) -> None:
    problem = problems.finite_chain(states, seed=4)
    matrix, law = problem.matrix(), problem.law()
    assert torch.allclose(law @ matrix, law, atol=1e-15)
    assert law.sum().item() == pytest.approx(1.0)
    (gradient,) = problem.exact_gradient()
    assert torch.allclose(gradient, law @ problem.features - problem.data_mean, atol=1e-12)
    assert torch.allclose(matrix.sum(1), torch.ones(states).double())
    assert (matrix >= 0.0).all()
    expected = average_law(matrix, unit(states), 5) @ problem.features - problem.data_mean
    assert torch.allclose(problem.average_gradient(5), expected, atol=1e-14)
    assert torch.allclose(problem.average_gradient(200_00), problem.exact_gradient()[0], atol=1e-2)
    one_hot = torch.eye(states, dtype=torch.float64)
    assert mean_is(one_hot[problem.sample(20_000, rng())], law)


def test_gaussian() -> None:
    problem = problems.gaussian(3)
    normal = torch.distributions.MultivariateNormal(problem.mean, problem.covariance)
    x = problem.sample(20_000, rng())
    difference = problem.log_density(x) - normal.log_prob(x)
    assert (difference - difference[0]).abs().max() < 1e-10
    assert mean_is(x, problem.mean)
    centred = x - problem.mean
    assert mean_is((centred[:, :, None] * centred[:, None]).flatten(1), problem.covariance)
    assert torch.equal(problem.exact_gradient()[0], -problem.mean)


def test_skewed() -> None:
    problem = problems.skewed(3)
    x = problem.sample(40_000, rng())
    assert mean_is(x, problem.mean)
    centred = x - problem.mean
    assert mean_is(centred**2, problem.variance)
    assert mean_is(centred**3, problem.third_moment)
    assert mean_is(x.exp(), problem.shape)
    assert (problem.third_moment < -0.1).all()
    # −γ, π²/6 and −2ζ(3) for a = 1.
    assert problem.mean[0].item() == pytest.approx(-0.5772156649015329)
    assert problem.variance[0].item() == pytest.approx(math.pi**2 / 6.0)
    assert problem.third_moment[0].item() == pytest.approx(-2.4041138063191885)


def test_linear_gaussian() -> None:
    problem = problems.linear_gaussian()
    y = problem.data[:1]
    mean, covariance = problem.posterior(y)
    prior = torch.distributions.MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double())
    posterior = torch.distributions.MultivariateNormal(mean[0], covariance)
    z = prior.sample((5,))
    with torch.no_grad():
        joint = -problem.loss(z, y.expand(5, -1))
    # Bayes: log p(y, z) − log p(z | y) is log p(y), whatever z.
    assert torch.allclose(joint - posterior.log_prob(z), problem.log_likelihood(y), atol=1e-10)
    marginal = torch.distributions.MultivariateNormal(
        problem.bias.detach(), problem.marginal_covariance()
    )
    assert torch.allclose(marginal.log_prob(y), problem.log_likelihood(y))
    # The importance weights average to the likelihood.
    proposal = torch.distributions.Normal(problem.proposal_mean(y)[0], problem.proposal_scale)
    log_q = proposal.log_prob(z).sum(1)
    with torch.no_grad():
        assert torch.allclose(problem.log_weight(z, y.expand(5, -1)), joint - log_q)
    rows = y.expand(20_000, -1)
    draws = problem.propose(20_000, rows, rng())
    assert mean_is(draws, problem.proposal_mean(y)[0])
    assert mean_is((draws - proposal.mean) ** 2, proposal.variance)
    assert mean_is(problem.sample(rows, rng()), mean[0])


def test_boltzmann() -> None:
    problem = problems.boltzmann()
    states, law = problem.states(), problem.law()
    hidden = [torch.tensor(h).double() for h in itertools.product((0.0, 1.0), repeat=3)]
    with torch.no_grad():
        mass = torch.stack(
            [
                sum(
                    (v @ problem.weight @ h + problem.visible @ v + problem.hidden @ h).exp()
                    for h in hidden
                )
                * torch.ones(())
                for v in states
            ]
        )
    assert torch.allclose(law, mass / mass.sum(), atol=1e-12)
    matrix = problem.transition()
    assert torch.allclose(matrix.sum(1), torch.ones(16).double(), atol=1e-12)
    assert torch.allclose(law @ matrix, law, atol=1e-12)
    # Null: one Gibbs step from state 5 has the law of row 5; false alarm 1e-5.
    one = Average(1).draw(20_000, None, rng())
    v = run(problem.kernel(), states[5].expand(20_000, -1), one)[1].last
    index = (v @ (2.0 ** torch.arange(4, dtype=torch.float64))).long()
    one_hot = torch.eye(16, dtype=torch.float64)[index]
    reachable = matrix[5] * 20_000 > 20
    assert mean_is(one_hot[:, reachable], matrix[5][reachable])
