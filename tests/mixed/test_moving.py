"""Scores of states that move with θ: exact with the right motion, without bias with any."""

import torch

from mlmcgrad.mixed.families import family
from mlmcgrad.mixed.joint import Joint
from mlmcgrad.mixed.laplace import laplace
from mlmcgrad.mixed.moving import Motion, moving_scores
from tests.chains import rng
from tests.mixed.crossing import normal, tensor
from tests.statistics import mean_is

AT = tensor(0.2, 0.4, 1.1, 0.3, 0.6, 0.8, -0.1)


def test_any_motion_is_without_bias() -> None:
    """Null: the mean is the exact score; false alarm 1e-5. States are exact, x ~ N(0, I)."""
    model = normal()
    exact = torch.autograd.functional.jacobian(model.log_likelihood, AT)
    joint = Joint(model.design, family("gaussian"))
    approximation = laplace(joint, AT)
    x = torch.randn(4000, joint.dimension, dtype=torch.float64, generator=rng())
    right = Motion.at(joint, AT, approximation.mode)
    found = moving_scores(joint, AT, approximation, right, x)
    torch.testing.assert_close(found, exact.expand_as(found), rtol=1e-5, atol=1e-5)
    other = Motion.at(joint, AT + 0.4, approximation.mode)
    found = moving_scores(joint, AT, approximation, other, x)
    assert float(found.std(0).min()) > 1e-3
    assert mean_is(found, exact)
    # Planted bug: the volume does not change with C.
    trace = (other.stretch.diagonal(dim1=1, dim2=2) / approximation.root.diagonal()).sum(1)
    assert not mean_is(found - trace, exact)
