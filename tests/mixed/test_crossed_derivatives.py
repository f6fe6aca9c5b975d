"""Scores of states that move with θ, Laplace's and the complete-data information, bounded steps."""

import torch
from torch import Tensor

from mlmcgrad.mixed.crossed import (
    Approximation,
    Joint,
    Motion,
    complete_information,
    laplace,
    louis,
    mean_score,
    positive,
)
from mlmcgrad.mixed.families import family
from tests.chains import rng
from tests.mixed.crossing import binary, normal, tensor
from tests.statistics import mean_is

AT = tensor(0.2, 0.4, 1.1, 0.3, 0.6, 0.8, -0.1)


def test_complete_data() -> None:
    theta = tensor(0.3, 0.5, 2.0, 1.2)
    model = binary(theta)
    joint = Joint(model.design, family("bernoulli"))
    u = torch.randn(joint.dimension, 3, dtype=torch.float64, generator=rng())

    def loss(theta: Tensor) -> Tensor:
        return -model.log_joint(theta, u.T).mean()

    exact = torch.autograd.functional.hessian(loss, theta)
    torch.testing.assert_close(complete_information(joint, theta, u), exact)


def test_steps_are_bounded_on_both_sides() -> None:
    complete = torch.diag(tensor(1.0, 2.0, 4.0, 1.0))
    found = positive(torch.diag(tensor(-0.5, 1e-9, 2.0, 7.0)), complete)
    torch.testing.assert_close(found, torch.diag(tensor(0.5, 0.1, 2.0, 1.0)), rtol=1e-6, atol=1e-6)


def each_score(here: Approximation, motion: Motion, x: Tensor) -> Tensor:
    """Return R of each state, (m, θ)."""
    one = torch.ones(1, dtype=torch.float64)
    return torch.stack([mean_score(here, motion, row[None], one) for row in x])


def test_any_motion_is_without_bias() -> None:
    """Null: the mean is the exact score; false alarm 1e-5. States are exact, x ~ N(0, I)."""
    model = normal()
    exact = torch.autograd.functional.jacobian(model.log_likelihood, AT)
    joint = Joint(model.design, family("gaussian"))
    approximation = laplace(joint, AT)
    x = torch.randn(2000, joint.dimension, dtype=torch.float64, generator=rng())
    found = each_score(approximation, Motion.at(approximation), x[:50])
    torch.testing.assert_close(found, exact.expand_as(found), rtol=3e-2, atol=3e-2)
    other = Motion.at(laplace(joint, AT + 0.4))
    found = each_score(approximation, other, x)
    assert float(found.std(0).min()) > 1e-3
    assert mean_is(found, exact)
    # Planted bug: the volume does not change with C.
    trace = (other.stretch.diagonal(dim1=1, dim2=2) / approximation.root.diagonal()).sum(1)
    assert not mean_is(found - trace, exact)


def test_louis_information_with_a_dispersion() -> None:
    """Null: the mean is the exact information; false alarm 1e-5. States are exact, x ~ N(0, I)."""
    model = normal()
    exact = -torch.autograd.functional.hessian(model.log_likelihood, AT)
    here = laplace(Joint(model.design, family("gaussian")), AT)
    x = torch.randn(2000, here.joint.dimension, dtype=torch.float64, generator=rng())
    c, owner = torch.full((2000,), 1.0 / 2000, dtype=torch.float64), torch.arange(2000) // 50
    motion = Motion.at(here)
    found = louis(here, motion, x, c, owner)
    fixed = found[:, :2, :2]  # without noise
    torch.testing.assert_close(fixed, exact[:2, :2].expand_as(fixed))
    assert mean_is(found[:, 2:].flatten(1), exact[2:].flatten())
    # Planted bug: a volume that does not belong to the states.
    motion.stretch.mul_(0.9)
    wrong = louis(here, motion, 1.1 * x, c, owner)
    assert not mean_is(wrong[:, 2:].flatten(1), exact[2:].flatten())
