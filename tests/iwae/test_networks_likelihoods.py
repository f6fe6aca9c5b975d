import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.iwae.networks import (
    BernoulliLikelihood,
    DiscretizedLogisticLikelihood,
    bits_per_dimension,
)


def test_bernoulli_is_the_cross_entropy() -> None:
    decoded, y = torch.tensor([[[[0.3, -2.0]]]]), torch.tensor([[[[1.0, 0.25]]]])
    p = torch.sigmoid(decoded)
    expected = (y * p.log() + (1 - y) * (1 - p).log()).sum()
    assert BernoulliLikelihood().log_prob(decoded, y).tolist() == pytest.approx([expected.item()])
    assert torch.equal(BernoulliLikelihood().mean(decoded), p)


def test_logits_of_any_size_in_double_precision() -> None:
    """−log(1 + e^a) is −a − e^{-a} to 1e-16 from a = 20 on; for a white pixel a is added."""
    for a in (21.0, 30.0, 39.0, 800.0):
        decoded = torch.full((1, 1, 1, 1), a, dtype=torch.float64)
        black, white = (
            BernoulliLikelihood().log_prob(decoded, c * torch.ones_like(decoded)) for c in (0, 1)
        )
        assert black.item() == pytest.approx(-a - math.exp(-a), rel=1e-15)
        assert white.item() == pytest.approx(-math.exp(-a), abs=1e-14)


def test_what_the_decoder_must_put_out() -> None:
    assert BernoulliLikelihood().outputs == 1
    assert DiscretizedLogisticLikelihood().outputs == 2
    assert DiscretizedLogisticLikelihood() == DiscretizedLogisticLikelihood(256)


@given(st.floats(-6.0, 6.0), st.floats(-9.0, 3.0), st.sampled_from([2, 17, 256]))
def test_probabilities_of_the_levels_sum_to_one(
    location: float, log_scale: float, levels: int
) -> None:
    likelihood = DiscretizedLogisticLikelihood(levels)
    y = (torch.arange(levels, dtype=torch.float64) / (levels - 1)).reshape(-1, 1, 1, 1)
    decoded = torch.tensor([location, log_scale], dtype=torch.float64).reshape(1, 2, 1, 1)
    log_prob = likelihood.log_prob(decoded.expand(levels, -1, -1, -1), y)
    assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    assert (log_prob <= 1e-12).all()


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def test_probabilities_of_three_levels_by_hand() -> None:
    """Bins end at ¼ and ¾; the image has two pixels, and a scale is at least 0.1/levels."""
    for log_scale in (-1.0, 0.5, -9.0):
        m, s = _sigmoid(0.4), max(math.exp(log_scale), 0.1 / 3)
        ends = [0.0, _sigmoid((0.25 - m) / s), _sigmoid((0.75 - m) / s), 1.0]
        p = [b - a for a, b in pairwise(ends)]
        decoded = torch.tensor([[0.4, 0.4], [log_scale] * 2], dtype=torch.float64)
        for i in range(3):
            y = torch.tensor([0.5 * i, 0.5], dtype=torch.float64).reshape(1, 1, 1, 2)
            found = DiscretizedLogisticLikelihood(3).log_prob(decoded.reshape(1, 2, 1, 2), y)
            assert found.tolist() == pytest.approx([math.log(p[i]) + math.log(p[1])])


def test_the_image_shown_is_the_location() -> None:
    decoded = torch.tensor([[[[0.0, 2.0]], [[-3.0, -4.0]]]])  # (rows, location and log scale, h, w)
    expected = torch.sigmoid(torch.tensor([[[[0.0, 2.0]]]]))
    assert torch.equal(DiscretizedLogisticLikelihood().mean(decoded), expected)
    colours = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert torch.equal(DiscretizedLogisticLikelihood().mean(colours), torch.sigmoid(colours[:, :3]))


def test_gradients_stay_finite_for_a_pixel_that_is_far_off() -> None:
    for log_scale in (-20.0, 200.0):  # the inverse of the larger one is 0
        decoded = torch.tensor([-20.0, log_scale]).reshape(1, 2, 1, 1).requires_grad_()
        value = DiscretizedLogisticLikelihood().log_prob(decoded, torch.full((1, 1, 1, 1), 0.99))
        value.sum().backward()
        assert value.isfinite().all()
        assert decoded.grad is not None
        assert decoded.grad.isfinite().all()


def test_bits_per_dimension() -> None:
    assert bits_per_dimension(3072 * math.log(2.0) * 8, (3, 32, 32)) == pytest.approx(8.0)
    with pytest.raises(ValueError, match="levels must be an integer ≥ 2, got 1"):
        DiscretizedLogisticLikelihood(1)
