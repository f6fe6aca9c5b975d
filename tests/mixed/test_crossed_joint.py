"""The joint density against dense matrices and autograd; its mode and curvature."""

import pytest
import torch
from torch import Tensor

from mlmcgrad.mixed.crossed import Joint, laplace, newton
from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.families import family
from tests.chains import rng
from tests.mixed.crossing import binary, simulate, tensor

FORMULA = "y ~ x + (1 + x | a) + (1 | b)"
THETA = tensor(0.2, 0.4, 1.1, 0.3, 0.6, 0.8, -0.1)


def made(name: str) -> tuple[Joint, Tensor, Tensor]:
    joint = Joint(build(FORMULA, simulate(0, (5, 4), 40, name)), family(name))
    u = torch.randn(joint.dimension, 3, dtype=torch.float64, generator=rng())
    return joint, THETA[: joint.layout.size], u


def dense(joint: Joint, theta: Tensor, u: Tensor) -> Tensor:
    """Log p(y, u) of one u, row by row; groups of a have two effects and come first."""
    total = -0.5 * (u.square() + torch.log(torch.tensor(2.0 * torch.pi))).sum()
    lower = [[theta[2], 0.0 * theta[2]], [theta[3], theta[4]]]
    dispersion = theta[6] if len(theta) > 6 else torch.zeros(()).double()
    for i in range(len(joint.x)):
        own, other = u[joint.place[i, :2]], u[joint.place[i, 2]]
        b = [lower[k][0] * own[0] + lower[k][1] * own[1] for k in range(2)]
        eta = joint.x[i] @ theta[:2] + b[0] + b[1] * joint.x[i, 1] + theta[5] * other
        value, _, _ = joint.family.slopes(eta, joint.y[i, 0], joint.trials[i, 0], dispersion)
        total = total + value
    return total


@pytest.mark.parametrize("name", ["gaussian", "bernoulli"])
def test_density_and_scores(name: str) -> None:
    joint, theta, u = made(name)
    value, gradient, _ = joint.density(theta, u)
    scores, same = joint.scores(theta, u)
    for i in range(u.shape[1]):
        at, of = theta.clone().requires_grad_(), u[:, i].clone().requires_grad_()
        exact = dense(joint, at, of)
        in_theta, in_u = torch.autograd.grad(exact, (at, of))
        torch.testing.assert_close(value[i], exact.detach())
        torch.testing.assert_close(scores[i], in_theta)
        torch.testing.assert_close(gradient[:, i], in_u)
    torch.testing.assert_close(same, gradient)


def test_places_of_groups_do_not_overlap() -> None:
    joint, _, _ = made("gaussian")
    assert joint.dimension == 5 * 2 + 4
    assert joint.place[:, :2].max() < 10 <= joint.place[:, 2].min()
    assert joint.place.unique().tolist() == list(range(14))


BINARY = tensor(0.3, 0.5, 3.0, 1.2)


def test_mode_and_curvature() -> None:
    joint = Joint(binary(BINARY).design, family("bernoulli"))
    found = laplace(joint, BINARY)
    value, gradient, _ = joint.density(BINARY, found.mean[:, None])
    assert float(gradient.abs().max()) < 1e-9

    def downhill(u: torch.Tensor) -> torch.Tensor:
        return -binary(BINARY).log_joint(BINARY, u[None])[0]

    hessian = torch.autograd.functional.hessian(downhill, found.mean)
    eye = torch.eye(joint.dimension, dtype=torch.float64)
    torch.testing.assert_close(found.root.T @ hessian @ found.root, eye)
    assert bool((found.root.tril(-1) == 0.0).all())
    torch.testing.assert_close(found.log_volume, -0.5 * torch.logdet(hessian))
    torch.testing.assert_close(newton(joint, BINARY)[2], value[0])


def test_newton_comes_back_from_far_away() -> None:
    joint = Joint(binary(BINARY).design, family("bernoulli"))
    far = torch.full((joint.dimension,), 30.0, dtype=torch.float64)
    torch.testing.assert_close(laplace(joint, BINARY, far).mean, laplace(joint, BINARY).mean)
