"""The mode is where the gradient vanishes, and C is a root of the inverse curvature there."""

import torch

from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.joint import Joint
from mlmcgrad.mixed.laplace import laplace, newton
from tests.mixed.crossing import binary, tensor

THETA = tensor(0.3, 0.5, 3.0, 1.2)


def test_mode_and_curvature() -> None:
    joint = Joint(binary(THETA).design, family("bernoulli"))
    found = laplace(joint, THETA)
    value, gradient = joint.density(THETA, found.mode[:, None])
    assert float(gradient.abs().max()) < 1e-9

    def downhill(u: torch.Tensor) -> torch.Tensor:
        return -binary(THETA).log_joint(THETA, u[None])[0]

    hessian = torch.autograd.functional.hessian(downhill, found.mode)
    eye = torch.eye(joint.dimension, dtype=torch.float64)
    torch.testing.assert_close(found.root.T @ hessian @ found.root, eye)
    assert bool((found.root.tril(-1) == 0.0).all())
    torch.testing.assert_close(found.log_volume, -0.5 * torch.logdet(hessian))
    torch.testing.assert_close(newton(joint, THETA)[2], value[0])


def test_newton_comes_back_from_far_away() -> None:
    joint = Joint(binary(THETA).design, family("bernoulli"))
    far = torch.full((joint.dimension,), 30.0, dtype=torch.float64)
    torch.testing.assert_close(laplace(joint, THETA, far).mode, laplace(joint, THETA).mode)
