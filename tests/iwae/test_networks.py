from itertools import pairwise

import pytest
import torch

from mlmcgrad.iwae.networks import (
    CIFAR10,
    DIGITS,
    MNIST,
    BernoulliLikelihood,
    DiscretizedLogisticLikelihood,
    LatentModel,
    PixelLikelihood,
    Sizes,
    upsample,
)
from tests.chains import rng

MIXED = Sizes((1, 8, 8), latent=4, channels=(8,), hidden=(20, 10))


WIDE = Sizes((2, 8, 12), latent=1, channels=(3, 5), hidden=(6,))


@pytest.mark.parametrize(
    "sizes",
    [DIGITS, MNIST, CIFAR10, MIXED, WIDE],
    ids=["digits", "mnist", "cifar10", "mixed", "wide"],
)
@pytest.mark.parametrize("likelihood", [BernoulliLikelihood(), DiscretizedLogisticLikelihood()])
def test_shapes(sizes: Sizes, likelihood: PixelLikelihood) -> None:
    model = LatentModel(sizes, likelihood, rng())
    y = torch.rand(3, *sizes.shape, generator=rng(1))
    mean, log_scale = model.encoder(y)
    assert mean.shape == log_scale.shape == (3, sizes.latent)
    z = model.propose(3, y, mean, log_scale, rng(2))
    assert model.likelihood.mean(model.decoder(z)).shape == y.shape
    assert model.log_weight(z, y, mean, log_scale).shape == (3,)
    assert model.log_weight(z, y, mean, log_scale).isfinite().all()


def test_log_q_is_the_normal_density() -> None:
    mean, log_scale = torch.randn(2, 4, 3, generator=rng()).unbind()
    z = torch.randn(4, 3, generator=rng(1))
    expected = torch.distributions.Normal(mean, log_scale.exp()).log_prob(z).sum(1)
    assert torch.allclose(LatentModel.log_q(z, mean, log_scale), expected, atol=1e-5)


def test_log_joint_is_the_normal_prior_times_the_likelihood() -> None:
    """Constants included: without them every NLL would be off by the same number of nats."""
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    z, y = torch.randn(4, 16, generator=rng(1)), torch.rand(4, 1, 8, 8, generator=rng(2)).round()
    pixels = torch.distributions.Bernoulli(logits=model.decoder(z)).log_prob(y)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1) + pixels.flatten(1).sum(1)
    assert torch.allclose(model.log_joint(z, y), expected, atol=1e-4)


def test_log_weight_is_the_joint_over_the_proposal() -> None:
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    z, y = torch.randn(4, 16, generator=rng(1)), torch.rand(4, 1, 8, 8, generator=rng(2)).round()
    mean, log_scale = model.encoder(y)
    ratio = model.log_joint(z, y) - model.log_q(z, mean, log_scale)
    assert torch.equal(model.log_weight(z, y, mean, log_scale), ratio)


@pytest.mark.parametrize("channels", [1, 3])
def test_upsampling_is_the_transposed_convolution(channels: int) -> None:
    """Values and gradients, in double precision."""
    layer = torch.nn.ConvTranspose2d(5, channels, 4, stride=2, padding=1, dtype=torch.float64)
    x = torch.randn(2, 5, 4, 6, dtype=torch.float64, generator=rng(1)).requires_grad_()
    cotangent = torch.randn(2, channels, 8, 12, dtype=torch.float64, generator=rng(2))
    found, expected = upsample(x, layer), layer(x)
    assert torch.allclose(found, expected, atol=1e-13)
    inputs = (x, *layer.parameters())
    for a, b in zip(
        torch.autograd.grad(found, inputs, cotangent),
        torch.autograd.grad(expected, inputs, cotangent),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-12)


def test_parameters_come_from_the_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = (LatentModel(DIGITS, BernoulliLikelihood(), rng(4)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    # A sensible start: outputs of order one, neither dead nor saturated.
    decoded = first.decoder(torch.randn(200, 16, generator=rng(5)))
    assert 0.02 < float(decoded.detach().std()) < 3.0


def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match="multiples of 8 for 3 convolutions"):
        Sizes((1, 28, 28), 10, (8, 8, 8))
    for shape in ((1, 28, 8), (1, 8, 28)):
        with pytest.raises(ValueError, match="multiples of 8"):
            Sizes(shape, 10, (8, 8, 8))
    for latent, channels in ((0, (8,)), (1, ())):
        with pytest.raises(ValueError, match="must not be empty"):
            Sizes((1, 8, 8), latent, channels)
    assert Sizes((1, 8, 16), 1, (8, 4)).inner == (4, 2, 4)


def test_sizes_of_the_published_networks() -> None:
    """Numbers of parameters by hand: what results in the documentation were made with."""

    def dense(*widths: int) -> int:
        return sum((a + 1) * b for a, b in pairwise(widths))

    def count(sizes: Sizes) -> int:
        model = LatentModel(sizes, BernoulliLikelihood(), rng())
        return sum(parameter.numel() for parameter in model.parameters())

    assert count(DIGITS) == dense(64, 200, 32) + dense(16, 200, 64)
    assert count(MNIST) == dense(784, 200, 200, 100) + dense(50, 200, 200, 784)
    encoder = sum((16 * a + 1) * b for a, b in pairwise((3, 32, 64, 128)))
    decoder = sum((16 * a + 1) * b for a, b in pairwise((128, 64, 32, 3)))
    inner = 128 * 4 * 4
    assert count(CIFAR10) == encoder + dense(inner, 200) + dense(100, inner) + decoder


def test_scales_stay_where_weights_are_finite() -> None:
    model = LatentModel(DIGITS, BernoulliLikelihood(), rng())
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.mul_(1e4)
    _, log_scale = model.encoder(torch.rand(3, 1, 8, 8, generator=rng()))
    assert log_scale.abs().max().item() == 7.0


def test_weights_have_the_variance_of_their_inputs() -> None:
    """Uniform in ±√(3/fan-in); a pixel of a transposed convolution sees a quarter of its kernel."""
    model = LatentModel(CIFAR10, BernoulliLikelihood(), rng())
    seen = 0
    for layer in model.modules():
        if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d, torch.nn.ConvTranspose2d)):
            seen += 1
            weight = layer.weight.detach()
            if isinstance(layer, torch.nn.Linear):
                inputs = layer.in_features
            else:
                inputs = layer.in_channels * (4 if layer.transposed else 16)
            bound = (3.0 / inputs) ** 0.5
            assert 0.98 * bound < float(weight.abs().max()) <= bound
            assert float(weight.std()) == pytest.approx(inputs**-0.5, rel=0.05)
            assert layer.bias is not None
            assert not layer.bias.any()
    assert seen == 8


def test_draws_have_the_precision_of_the_mean() -> None:
    zero = torch.zeros(50, 2, dtype=torch.float64)
    z = LatentModel.propose(50, zero, zero, zero, rng())
    assert z.dtype == torch.float64
    assert not torch.equal(z.float().double(), z)
