"""Both gradients from one pass, against autograd on each of them."""

import numpy as np
import torch

from mlmcgrad.iwae.states import States, differentiate, side_by_side, thinned
from mlmcgrad.measure import Measure
from tests.chains import rng
from tests.iwae.models import linear


def test_both_gradients_are_those_of_autograd() -> None:
    """Weights of all kinds: for one gradient, for both, for none, and far apart in size."""
    model, chunk = linear(latent=2), 3
    c = torch.tensor([0.5, 0.0, -0.3, 0.0, 1e-12, 1.0, -1e-40, 0.2], dtype=torch.float64)
    b = torch.tensor([0.7, 0.2, 0.0, 0.0, 0.4, 1.0, 0.6, 0.0], dtype=torch.float64)
    owner = torch.tensor([2, 0, 2, 0, 1, 0, 1, 1])
    z = torch.randn(8, 2, dtype=torch.float64, generator=rng(1))
    y = torch.randn(3, 3, dtype=torch.float64, generator=rng(2))
    parameters = tuple(model.decoder.parameters())

    def loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -model.log_joint(z, y)

    states = States(Measure(z, owner, c), b.numpy())
    theta, slopes, total, count = differentiate(model.log_joint, parameters, states, y, chunk=chunk)
    losses = loss(z, y[owner])
    value = (c * losses).sum() / 3
    for a, e in zip(theta, torch.autograd.grad(value, parameters), strict=True):
        assert torch.allclose(a, e, rtol=1e-12, atol=1e-14)
    z.requires_grad_()
    (slope,) = torch.autograd.grad((b * loss(z, y[owner])).sum() / 3, z)
    assert torch.allclose(slopes, slope, rtol=1e-12, atol=1e-14)
    assert abs(total - value.item()) < 1e-12
    # Six have a weight for θ, two of these too small a one to serve φ, and one has only φ's.
    assert count == 6 + 2 + 1


def test_first_draws_follow_the_states_of_other_chains() -> None:
    theta = [
        Measure(torch.tensor([[7.0, 7.0]]), torch.tensor([1]), torch.tensor([0.5]).double()),
        Measure(torch.tensor([[8.0, 9.0]]), torch.tensor([0]), torch.tensor([2.0]).double()),
    ]
    draws = Measure(
        torch.arange(8.0).reshape(4, 2), torch.tensor([0, 0, 1, 1]), torch.ones(4).double()
    )
    phi = np.array([0.1, 0.9, 0.3, 0.7])
    states = side_by_side(theta, draws, phi)
    assert states.theta.points.tolist() == [[7, 7], [8, 9], [0, 1], [2, 3], [4, 5], [6, 7]]
    assert states.theta.owner.tolist() == [1, 0, 0, 0, 1, 1]
    assert states.theta.coefficient.tolist() == [0.5, 2.0, 0.0, 0.0, 0.0, 0.0]
    assert states.phi.tolist() == [0.0, 0.0, 0.1, 0.9, 0.3, 0.7]


def test_thinned_states_have_their_weights_divided_by_the_probability() -> None:
    """The first is kept with max(0.1/0.4, 0.05/0.1) = ½, the other with max(0.3/0.4, 0) = ¾."""
    measure = Measure(
        torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([-0.1, 0.3], dtype=torch.float64)
    )
    states = States(measure, np.array([0.05, 0.0]))
    seen = [thinned(states, np.full(2, 0.4), 0.1, rng(seed)) for seed in range(40)]
    assert {len(kept.phi) for kept in seen} == {0, 1, 2}
    for kept in seen:
        first = kept.theta.owner == 0
        assert torch.allclose(kept.theta.coefficient, torch.where(first, -0.2, 0.4).double())
        assert np.allclose(kept.phi, np.where(first, 0.1, 0.0))


def test_without_thresholds_only_states_without_weight_go() -> None:
    c = torch.tensor([0.0, 1e-300, -0.5, 0.0], dtype=torch.float64)
    b = np.array([0.2, 0.0, 1e-200, 0.0])
    states = States(Measure(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), c), b)
    kept = thinned(states, np.zeros(4), 0.0, rng())
    assert kept.theta.coefficient.tolist() == c[:3].tolist()
    assert kept.phi.tolist() == b[:3].tolist()
