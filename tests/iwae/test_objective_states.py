"""Both gradients from one pass, against autograd on each of them."""

import numpy as np
import torch

from mlmcgrad.iwae.objective import differentiate, thin_states
from mlmcgrad.iwae.proposal import States
from mlmcgrad.lengths import Lengths
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
    sums, slopes, count = differentiate(model.log_joint, parameters, states, y, chunk=chunk)
    theta = sums.gradients()
    losses = loss(z, y[owner])
    value = (c * losses).sum() / 3
    for a, e in zip(theta, torch.autograd.grad(value, parameters), strict=True):
        assert torch.allclose(a, e, rtol=1e-12, atol=1e-14)
    z.requires_grad_()
    (slope,) = torch.autograd.grad((b * loss(z, y[owner])).sum() / 3, z)
    assert torch.allclose(slopes, slope, rtol=1e-12, atol=1e-14)
    assert abs(sums.value - value.item()) < 1e-12
    # Six have a weight for θ, two of these too small a one to serve φ, and one has only φ's.
    assert count == 6 + 2 + 1


def test_a_weight_of_0_times_an_infinite_slope_is_0() -> None:
    """√|z| has an infinite slope at 0; float32 has no 1e-60. θ and φ meet both, and get 0 there."""
    theta = torch.tensor([2.0], requires_grad=True)

    def log_joint(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return theta * y[:, 0] - z[:, 0].abs().sqrt()

    def steep(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return log_joint(z, y) - (theta * z[:, 0]).abs().sqrt()

    z, y = torch.tensor([[0.0], [1.0]]), torch.ones(2, 1)
    owner, b = torch.tensor([0, 1]), np.array([0.0, 0.5])
    for density, small, slope in ((log_joint, 0.5, 0.5), (steep, 1e-60, 1.2071)):
        c = torch.tensor([small, 1.0], dtype=torch.float64)
        states = States(Measure(z, owner, c), b)
        sums, slopes, _ = differentiate(density, (theta,), states, y, chunk=1)
        (gradient,) = sums.gradients()
        assert gradient.isfinite().all()
        assert torch.allclose(slopes, torch.tensor([[0.0], [0.5 * slope / 2.0]]), atol=1e-4)
    only_phi = States(Measure(z, owner, torch.tensor([0.0, 1.0]).double()), np.array([1e-60, 0.5]))
    _, slopes, count = differentiate(log_joint, (theta,), only_phi, y, chunk=1)
    assert torch.equal(slopes, torch.tensor([[0.0], [0.125]]))
    assert count == 1


def _lengths(weight: float) -> Lengths:
    """Two chains of one step."""
    ones = torch.ones(2, 1, dtype=torch.int64)
    return Lengths(ones[:, 0], ones, torch.full((2, 1), weight, dtype=torch.float64))


def test_thinned_states_have_their_weights_divided_by_the_probability() -> None:
    """The first is kept with max(0.1/0.4, 0.05/0.1) = ½, the other with max(0.3/0.4, 0) = ¾."""
    measure = Measure(
        torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([-0.1, 0.3], dtype=torch.float64)
    )
    states, lengths = States(measure, np.array([0.05, 0.0])), _lengths(4.0)
    seen = [thin_states(states, lengths, 0.1, rng(seed), by_block=False) for seed in range(40)]
    assert {len(kept.phi) for kept in seen} == {0, 1, 2}
    for kept in seen:
        first = kept.theta.owner == 0
        assert torch.allclose(kept.theta.coefficient, torch.where(first, -0.2, 0.4).double())
        assert np.allclose(kept.phi, np.where(first, 0.1, 0.0))


def test_without_thresholds_only_states_without_weight_go() -> None:
    c = torch.tensor([0.0, 1e-300, -0.5, 0.0], dtype=torch.float64)
    b = np.array([0.2, 0.0, 1e-200, 0.0])
    states = States(Measure(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), c), b)
    lengths = _lengths(1.0)
    kept = thin_states(states, lengths, 0.0, rng(), by_block=False)
    assert kept.theta.coefficient.tolist() == c[:3].tolist()
    assert kept.phi.tolist() == b[:3].tolist()
