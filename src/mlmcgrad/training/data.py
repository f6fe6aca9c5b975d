"""What a run is trained on: images, the sizes of the networks that fit them, and their order."""

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
from mlmcgrad.training.config import Settings


@dataclass(frozen=True, eq=False)
class Source:
    """Images as integers 0, …, levels − 1, (N, channels, h, w)."""

    train: NDArray[np.uint8]
    test: NDArray[np.uint8]
    levels: int
    sizes: Sizes

    def images(self, which: NDArray[np.uint8], rows: Any, device: torch.device) -> Tensor:
        """Some rows as float32 in [0, 1], channels last in memory as the networks have them."""
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


def load(settings: Settings) -> Source:
    """The images of the dataset, and networks with the wanted dimension of z."""
    data, sizes = (
        (datasets.digits(), DIGITS)
        if settings.dataset == "digits"
        else (datasets.cifar10(), CIFAR10)
    )
    sizes = dataclasses.replace(sizes, latent=settings.latent)
    return Source(data.train, data.test, data.levels, sizes)


class Order:
    """Batches of indices without end: every epoch is a fresh permutation of the images.

    Images left over at the end of an epoch that do not fill a batch are not used in that epoch.

    Args:
        count: images.
        batch_size: indices in a batch.
        seed: of the permutations.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        if batch_size > count:
            raise ValueError(
                f"batch_size must be ≤ {count}, the number of images, got {batch_size}"
            )
        self.count, self.batch_size = count, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self._begin_epoch()

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.count // self.batch_size

    def next(self) -> Tensor:
        """The next batch of indices."""
        if self._position == self.per_epoch:
            self._begin_epoch()
        begin = self._position * self.batch_size
        self._position += 1
        return self._permutation[begin : begin + self.batch_size]

    def state(self) -> dict[str, Any]:
        """Where it is: the generator before this epoch's permutation, and the batches used."""
        return {"before": self._before, "position": self._position}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.generator.set_state(state["before"])
        self._begin_epoch()
        self._position = state["position"]

    def _begin_epoch(self) -> None:
        self._before = self.generator.get_state()
        self._permutation = torch.randperm(self.count, generator=self.generator)
        self._position = 0
