"""Encoder, decoder, and the latent model that they define: p_θ(y, z) and q_φ(z | y).

    z ~ N(0, I),   y | z ~ likelihood(decoder(z)),   q(z | y) = N(mean(y), diag scale(y)²),
    log w = log p_θ(y, z) − log q_φ(z | y).

The decoder mirrors the encoder.

Likelihoods p(y | z) of images with pixels in [0, 1], from the output of a decoder.

Bernoulli (the default): log p = Σ y log σ(a) + (1−y) log(1 − σ(a)), the cross-entropy. For grey
pixels it is not a normalised density, so its values are only comparable with each other.

Discretized logistic: pixels are k/(levels−1); with location m, scale s and half a bin
h = 1/(2(levels−1)),

    p(y) = σ((y + h − m)/s) − σ((y − h − m)/s),

where the first and the last bin reach to ∓∞. It is a probability of 8-bit images, so bits per
dimension are meaningful.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlmcgrad._checks import whole
from mlmcgrad.kernels.base import judged

# Scales of q outside e^{±7} make weights overflow.
_LOG_SCALE = 7.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of an encoder with stride-2 convolutions and dense layers, which the decoder mirrors.

    Dense layers alone suit small images: on 8×8 pixels they are several times faster.
    """

    shape: tuple[int, int, int]  # channels, height, width of an image
    latent: int
    channels: tuple[int, ...] = ()  # of the encoder's convolutions, first to last
    hidden: tuple[int, ...] = ()  # of the encoder's dense layers, first to last

    def __post_init__(self) -> None:
        if self.latent < 1 or not (self.channels or self.hidden):
            raise ValueError(f"latent and one of channels and hidden must not be empty, got {self}")
        side = 2 ** len(self.channels)
        if self.shape[1] % side or self.shape[2] % side:
            raise ValueError(
                f"height and width must be multiples of {side} for {len(self.channels)} "
                f"convolutions of stride 2, got shape {self.shape}"
            )

    @property
    def inner(self) -> tuple[int, int, int]:
        """Channels, height, width between the convolutions and the dense layers."""
        side = 2 ** len(self.channels)
        channels = self.channels[-1] if self.channels else self.shape[0]
        return channels, self.shape[1] // side, self.shape[2] // side


DIGITS = Sizes((1, 8, 8), latent=16, hidden=(200,))
# As in Burda, Grosse and Salakhutdinov, "Importance Weighted Autoencoders", ICLR 2016, with ReLU.
MNIST = Sizes((1, 28, 28), latent=50, hidden=(200, 200))
CIFAR10 = Sizes((3, 32, 32), latent=100, channels=(32, 64, 128))


class Encoder(nn.Module):
    """Maps y to mean and log scale of q(z | y)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in pairwise((sizes.shape[0], *sizes.channels)):
            layers += [nn.Conv2d(before, width, 4, stride=2, padding=1), nn.ReLU(inplace=True)]
        layers.append(nn.Flatten())
        for before, width in pairwise((math.prod(sizes.inner), *sizes.hidden)):
            layers += [nn.Linear(before, width), nn.ReLU(inplace=True)]
        last = sizes.hidden[-1] if sizes.hidden else math.prod(sizes.inner)
        self.body = nn.Sequential(*layers, nn.Linear(last, 2 * sizes.latent))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log scale, (rows, latent) each."""
        out = self.body(y.contiguous(memory_format=torch.channels_last))
        mean, log_scale = judged(out).chunk(2, dim=1)  # draws are not made in half precision
        return mean, log_scale.clamp(-_LOG_SCALE, _LOG_SCALE)


class Decoder(nn.Module):
    """Maps z to the parameters of the likelihood, (rows, outputs·channels, h, w)."""

    def __init__(self, sizes: Sizes, outputs: int) -> None:
        super().__init__()
        channels, *area = sizes.inner
        if not sizes.channels:
            channels *= outputs
        self.inner = (channels, *area)
        widths = (sizes.latent, *reversed(sizes.hidden), math.prod(self.inner))
        dense: list[nn.Module] = []
        for before, width in pairwise(widths):
            dense += [nn.Linear(before, width), nn.ReLU(inplace=True)]
        self.dense = nn.Sequential(*dense[:-1])
        layers: list[nn.Module] = []
        if sizes.channels:
            for before, width in pairwise((*reversed(sizes.channels), outputs * sizes.shape[0])):
                layers += [
                    nn.ReLU(inplace=True),
                    nn.ConvTranspose2d(before, width, 4, stride=2, padding=1),
                ]
        self.body = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        """Return the parameters of the likelihood."""
        image = self.dense(z).reshape(-1, *self.inner)
        if not len(self.body):
            return image
        image = image.contiguous(memory_format=torch.channels_last)
        *layers, last = self.body
        for layer in layers:
            image = layer(image)
        assert isinstance(last, nn.ConvTranspose2d)
        return upsample(image, last)


def upsample(x: Tensor, layer: nn.ConvTranspose2d) -> Tensor:
    """Apply a transposed convolution of size 4, stride 2, padding 1 as a convolution of size 2.

    Output pixel 2i−1+α depends on input pixels i−1 and i, through the weights 2+α and α: the same
    pixels for α = 0 and 1. So the four phases of the output are four groups of channels on a grid
    larger by one pixel. With few output channels this takes less than half the time of the
    transposed convolution (with many channels it is slower).

    Args:
        x: (rows, before, h, w), channels last in memory.
        layer: its weight is (before, channels, 4, 4).

    Returns:
        (rows, channels, 2h, 2w).
    """
    assert layer.bias is not None
    before, channels = layer.weight.shape[:2]
    phases = layer.weight.reshape(before, channels, 2, 2, 2, 2).flip(2, 4).permute(3, 5, 1, 0, 2, 4)
    weight, bias = phases.reshape(4 * channels, before, 2, 2), layer.bias.repeat(4)
    grid = functional.conv2d(x, weight, bias, padding=1)
    rows, _, h, w = grid.shape
    pixels = grid.permute(0, 2, 3, 1).reshape(rows, h, w, 2, 2 * channels)
    fine = pixels.transpose(2, 3).reshape(rows, 2 * h, 2 * w, channels)
    return fine[:, 1:-1, 1:-1].permute(0, 3, 1, 2)


class HiddenVariableModel(Protocol):
    """Interface of a model in `Objective`: p_θ(y, z) and a proposal q_φ(z | y)."""

    @property
    def encoder(self) -> nn.Module:
        """Maps y to mean and log scale of q, (rows, latent) each; its parameters are φ."""

    @property
    def decoder(self) -> nn.Module:
        """The module whose parameters are θ."""

    def log_joint(self, z: Tensor, y: Tensor) -> Tensor:
        """Return log p_θ(y, z), (rows,)."""

    def log_weight(self, z: Tensor, y: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
        """Return log p_θ(y, z) − log q_φ(z | y), (rows,)."""

    def propose(
        self, rows: int, y: Tensor, mean: Tensor, log_scale: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw from q(z | y) once for each row."""


class LatentModel(nn.Module):
    """An encoder, a decoder and a likelihood.

    Args:
        sizes: sizes of the networks.
        likelihood: likelihood of the pixels.
        generator: source of the initial parameters.
    """

    def __init__(
        self, sizes: Sizes, likelihood: PixelLikelihood, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.sizes, self.likelihood = sizes, likelihood
        # Created without values, so that torch's global generator is not used, and in float32
        # whatever torch's default dtype is.
        with torch.device("meta"):
            encoder, decoder = Encoder(sizes).float(), Decoder(sizes, likelihood.outputs).float()
        self.encoder = _initialised(encoder, generator)
        self.decoder = _initialised(decoder, generator)

    def log_joint(self, z: Tensor, y: Tensor) -> Tensor:
        """Return log p_θ(y, z), (rows,)."""
        square = z.square().sum(1) + z.shape[1] * math.log(2.0 * math.pi)
        likelihood = self.likelihood.log_prob(judged(self.decoder(z)), y)
        return torch.add(likelihood, square, alpha=-0.5)

    @staticmethod
    def log_q(z: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
        """Return log q(z | y) from its mean and log scale, (rows,)."""
        scaled = (z - mean) * torch.exp(-log_scale)
        volume = torch.addcmul(log_scale, scaled, scaled, value=0.5).sum(1)
        return -0.5 * z.shape[1] * math.log(2.0 * math.pi) - volume

    def log_weight(self, z: Tensor, y: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
        """Return log w = log p_θ(y, z) − log q_φ(z | y), (rows,)."""
        return self.log_joint(z, y) - self.log_q(z, mean, log_scale)

    @staticmethod
    def propose(
        rows: int, y: Tensor, mean: Tensor, log_scale: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw from q(z | y) once for each row."""
        noise = torch.randn(
            rows, mean.shape[1], dtype=mean.dtype, device=mean.device, generator=generator
        )
        return mean + log_scale.exp() * noise


def _initialised(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw weights uniform in ±√(3/fan-in), of variance 1/fan-in, and set biases to 0.

    The narrower ±1/√fan-in (torch's default) trained about as well on digits.
    """
    module = module.to_empty(device=generator.device)
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            fan_in = layer.weight[0].numel()
            if isinstance(layer, nn.ConvTranspose2d):
                # Each output pixel depends on a quarter of the 4×4 kernel at stride 2.
                fan_in = layer.weight.shape[0] * 4
            bound = math.sqrt(3.0 / fan_in)
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
            if layer.weight.dim() == 4:
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return module


class PixelLikelihood(Protocol):
    """Interface of a likelihood in `LatentModel`."""

    @property
    def outputs(self) -> int:
        """Number of decoder outputs per pixel channel."""

    def log_prob(self, decoded: Tensor, y: Tensor) -> Tensor:
        """Return the log-likelihood per image, (rows,), from (rows, outputs·channels, h, w)."""

    def mean(self, decoded: Tensor) -> Tensor:
        """Return the mean image of a decoder output, (rows, channels, h, w) in [0, 1]."""


@final
@dataclass(frozen=True)
class BernoulliLikelihood:
    """Cross-entropy; the decoder returns logits."""

    @property
    def outputs(self) -> int:
        """One logit."""
        return 1

    def log_prob(self, decoded: Tensor, y: Tensor) -> Tensor:
        """Return −Σ cross-entropy, (rows,)."""
        # Σ y a − Σ log(1 + e^a) takes a third less time than torch's cross-entropy; beyond the
        # threshold log(1 + e^a) is a in double precision too.
        pixels = (1, 2, 3)
        return (y * decoded).sum(pixels) - functional.softplus(decoded, threshold=40.0).sum(pixels)

    def mean(self, decoded: Tensor) -> Tensor:
        """Return σ(logit)."""
        return torch.sigmoid(decoded)


@final
@dataclass(frozen=True)
class DiscretizedLogisticLikelihood:
    """A logistic distribution on the grey levels; the decoder returns locations and log scales.

    Args:
        levels: number of grey levels, 256 for 8 bits.
    """

    levels: int = 256

    def __post_init__(self) -> None:
        whole(self.levels, "levels", 2)

    @property
    def outputs(self) -> int:
        """Location and log scale."""
        return 2

    def log_prob(self, decoded: Tensor, y: Tensor) -> Tensor:
        """Return Σ log p(pixel), (rows,)."""
        location, log_scale = self._split(decoded)
        half = 0.5 / (self.levels - 1)
        inverse = torch.exp(-log_scale)
        above, below = (y + half - location) * inverse, (y - half - location) * inverse
        # log(σ(a) − σ(b)) = log σ(a) + log σ(−b) + log(1 − e^{b−a}), without cancellation.
        inside = (
            functional.logsigmoid(above)
            + functional.logsigmoid(-below)
            + torch.log(-torch.expm1((below - above).clamp(max=-1e-7)))
        )
        first, last = y < half, y > 1.0 - half
        bins = torch.where(first, functional.logsigmoid(above), inside)
        bins = torch.where(last, functional.logsigmoid(-below), bins)
        return bins.flatten(1).sum(1)

    def mean(self, decoded: Tensor) -> Tensor:
        """Return the location."""
        return self._split(decoded)[0]

    def _split(self, decoded: Tensor) -> tuple[Tensor, Tensor]:
        location, log_scale = decoded.chunk(2, dim=1)
        # A location of 0 is grey; a scale below a tenth of a bin only adds noise.
        return torch.sigmoid(location), log_scale.clamp(min=math.log(0.1 / self.levels))


def bits_per_dimension(nats: float, shape: tuple[int, ...]) -> float:
    """Convert nats per image to bits per pixel channel."""
    return nats / math.log(2.0) / math.prod(shape)
