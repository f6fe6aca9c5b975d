"""Chains and the annealed log-likelihood, against quadrature."""

import math

import torch

from mlmcgrad.estimators import Average
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.joint import Joint
from mlmcgrad.mixed.langevin import annealed, run, step_size
from mlmcgrad.mixed.laplace import laplace
from tests.chains import rng
from tests.mixed.crossing import binary, tensor
from tests.statistics import mean_is

THETA = tensor(0.3, 0.5, 2.0, 1.2)


def test_step_size() -> None:
    assert math.isclose(step_size(8), 0.5 * 1.65**2 / 2.0)


def test_chains_have_the_mean_of_the_posterior() -> None:
    """Null: the mean of u is that of quadrature; false alarm 1e-5. The mode is not the mean."""
    model = binary(THETA)
    joint = Joint(model.design, family("bernoulli"))
    approximation = laplace(joint, THETA)
    u, log_weight = model.points
    exact = (model.log_joint(THETA, u) + log_weight).softmax(0) @ u
    states, outcome = run(
        joint, THETA, approximation, Average(1), chains=20_000, step=0.8, generator=rng()
    )
    assert mean_is(approximation.at(states.points).T, exact)
    assert 0.4 < outcome.accepted / 20_000 < 0.9
    # Planted bug: draws of Laplace's approximation.
    x = torch.randn(20_000, joint.dimension, dtype=torch.float64, generator=rng())
    assert not mean_is(approximation.at(x).T, exact)


def test_annealing_is_right_for_any_number_of_temperatures() -> None:
    """Null: the mean likelihood is that of quadrature; false alarm 1e-5."""
    model = binary(THETA)
    joint = Joint(model.design, family("bernoulli"))
    approximation, exact = laplace(joint, THETA), float(model.log_likelihood(THETA))
    errors = []
    for temperatures in (2, 16):
        found = annealed(
            joint,
            THETA,
            approximation,
            temperatures=temperatures,
            chains=10_000,
            step=0.8,
            generator=rng(),
        )
        mean = found.total - 0.5 * found.error**2  # the logarithm of the mean weight
        ratio = (found.deviation[0] + 1.0) * math.exp(mean - exact)
        assert mean_is(ratio[:, None], tensor(1.0))
        errors.append(found.error)
    assert errors[1] < errors[0]
