"""Curvatures: Laplace's by differences, the complete-data one by autograd, and what steps take."""

import torch
from torch import Tensor

from mlmcgrad.mixed.curvature import complete_information, laplace_information, positive
from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.joint import Joint
from mlmcgrad.mixed.laplace import newton
from tests.chains import rng
from tests.mixed.crossing import binary, normal, tensor

AT = tensor(0.2, 0.4, 1.1, 0.3, 0.6, 0.8, -0.1)


def test_laplace_is_exact_for_gaussian_responses() -> None:
    model = normal()
    joint = Joint(model.design, family("gaussian"))
    found = laplace_information(joint, AT, newton(joint, AT)[0])
    exact = -torch.autograd.functional.hessian(model.log_likelihood, AT)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-3)


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
