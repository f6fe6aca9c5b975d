"""Likelihoods p(y | z) of images with pixels in [0, 1], from what a decoder puts out.

Bernoulli (the default, as in the paper's lineage): log p = Σ y log σ(a) + (1−y) log(1 − σ(a)), the
cross-entropy; for grey pixels it is not a normalised density, so numbers compare only with each
other.

Discretized logistic: pixels are k/(levels−1); with location m, scale s and half a bin
h = 1/(2(levels−1)),

    p(y) = σ((y + h − m)/s) − σ((y − h − m)/s),

the first and the last bin reaching to ∓∞: a probability of 8-bit images, so bits per dimension mean
what they say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn import functional

from mlmcgrad.ranges import whole


class Likelihood(Protocol):
    """What a latent model needs of a likelihood."""

    @property
    def outputs(self) -> int:
        """Numbers that the decoder must put out for each pixel channel."""

    def log_prob(self, decoded: Tensor, y: Tensor) -> Tensor:
        """Log-likelihood of each image, (rows,), from (rows, outputs·channels, h, w)."""

    def mean(self, decoded: Tensor) -> Tensor:
        """The image to show for what the decoder put out, (rows, channels, h, w) in [0, 1]."""


@final
@dataclass(frozen=True)
class Bernoulli:
    """Cross-entropy; the decoder puts out logits."""

    @property
    def outputs(self) -> int:
        """One logit."""
        return 1

    def log_prob(self, decoded: Tensor, y: Tensor) -> Tensor:
        """−Σ cross-entropy, (rows,)."""
        # Σ y a − Σ log(1 + e^a) takes a third less time than torch's cross-entropy; beyond the
        # threshold log(1 + e^a) is a in double precision too.
        pixels = (1, 2, 3)
        return (y * decoded).sum(pixels) - functional.softplus(decoded, threshold=40.0).sum(pixels)

    def mean(self, decoded: Tensor) -> Tensor:
        """σ(logit)."""
        return torch.sigmoid(decoded)


@final
@dataclass(frozen=True)
class DiscretizedLogistic:
    """A logistic distribution on the grey levels; the decoder puts out locations and log scales.

    Args:
        levels: grey levels of a pixel, 256 for 8 bits.
    """

    levels: int = 256

    def __post_init__(self) -> None:
        whole(self.levels, "levels", 2)

    @property
    def outputs(self) -> int:
        """Location and log scale."""
        return 2

    def log_prob(self, decoded: Tensor, y: Tensor) -> Tensor:
        """Σ log p(pixel), (rows,)."""
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
        """The location."""
        return self._split(decoded)[0]

    def _split(self, decoded: Tensor) -> tuple[Tensor, Tensor]:
        location, log_scale = decoded.chunk(2, dim=1)
        # At 0 the decoder means a grey image; a scale below a tenth of a bin only adds noise.
        return torch.sigmoid(location), log_scale.clamp(min=math.log(0.1 / self.levels))


def bits_per_dimension(nats: float, shape: tuple[int, ...]) -> float:
    """Nats of an image as bits per pixel channel."""
    return nats / math.log(2.0) / math.prod(shape)
