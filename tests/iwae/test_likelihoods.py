import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.iwae.likelihoods import Bernoulli, DiscretizedLogistic, bits_per_dimension


def test_bernoulli_is_the_cross_entropy() -> None:
    decoded, y = torch.tensor([[[[0.3, -2.0]]]]), torch.tensor([[[[1.0, 0.25]]]])
    p = torch.sigmoid(decoded)
    expected = (y * p.log() + (1 - y) * (1 - p).log()).sum()
    assert Bernoulli().log_prob(decoded, y).tolist() == pytest.approx([expected.item()])
    assert torch.equal(Bernoulli().mean(decoded), p)


@given(st.floats(-6.0, 6.0), st.floats(-9.0, 3.0), st.sampled_from([2, 17, 256]))
def test_probabilities_of_the_levels_sum_to_one(
    location: float, log_scale: float, levels: int
) -> None:
    likelihood = DiscretizedLogistic(levels)
    y = (torch.arange(levels, dtype=torch.float64) / (levels - 1)).reshape(-1, 1, 1, 1)
    decoded = torch.tensor([location, log_scale], dtype=torch.float64).reshape(1, 2, 1, 1)
    log_prob = likelihood.log_prob(decoded.expand(levels, -1, -1, -1), y)
    assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    assert (log_prob <= 1e-12).all()


def test_the_image_shown_is_the_location() -> None:
    decoded = torch.tensor([[[[0.0, 2.0]], [[-3.0, -4.0]]]])  # (rows, location and log scale, h, w)
    expected = torch.sigmoid(torch.tensor([[[[0.0, 2.0]]]]))
    assert torch.equal(DiscretizedLogistic().mean(decoded), expected)


def test_gradients_stay_finite_for_a_pixel_that_is_far_off() -> None:
    decoded = torch.tensor([-20.0, -20.0]).reshape(1, 2, 1, 1).requires_grad_()
    value = DiscretizedLogistic().log_prob(decoded, torch.full((1, 1, 1, 1), 0.99))
    value.sum().backward()
    assert value.isfinite().all()
    assert decoded.grad is not None
    assert decoded.grad.isfinite().all()


def test_bits_per_dimension() -> None:
    assert bits_per_dimension(3072 * math.log(2.0) * 8, (3, 32, 32)) == pytest.approx(8.0)
    with pytest.raises(ValueError, match="levels must be an integer ≥ 2, got 1"):
        DiscretizedLogistic(1)
