"""What a run is trained on: images, and the sizes of the networks that fit them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad import datasets
from mlmcgrad.iwae.networks import CIFAR10, DIGITS, Sizes
from mlmcgrad.training.config import Config


@dataclass(frozen=True, eq=False)
class Source:
    """Images as integers 0, …, levels − 1, (N, channels, h, w)."""

    train: NDArray[np.uint8]
    test: NDArray[np.uint8]
    levels: int
    sizes: Sizes

    def images(self, which: NDArray[np.uint8], rows: Any, device: torch.device) -> Tensor:
        """Some rows as float32 in [0, 1], with the channels last as the networks have them."""
        values = np.asarray(which[rows]).astype(np.float32) / np.float32(self.levels - 1)
        return torch.from_numpy(values).to(device, memory_format=torch.channels_last)

    def about(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {
            "train": list(self.train.shape),
            "test": list(self.test.shape),
            "levels": self.levels,
            "latent": self.sizes.latent,
            "channels": list(self.sizes.channels),
        }


def load(config: Config) -> Source:
    """The images of the dataset named in the settings (these must be resolved)."""
    data, sizes = (
        (datasets.digits(), DIGITS) if config.dataset == "digits" else (datasets.cifar10(), CIFAR10)
    )
    assert config.latent is not None
    sizes = dataclasses.replace(sizes, latent=config.latent)
    return Source(data.train, data.test, data.levels, sizes)


__all__ = ["Source", "load"]
