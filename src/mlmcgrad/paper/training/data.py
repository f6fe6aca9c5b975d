"""What a run is trained on: images, the sizes of the networks that fit them, and their order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmcgrad.iwae.networks import CIFAR10, DIGITS, MNIST, Sizes
from mlmcgrad.paper import datasets
from mlmcgrad.paper.datasets.dataset import sha256
from mlmcgrad.paper.training.config import Settings


@dataclass(frozen=True, eq=False)
class Source:
    """Images as integers 0, …, levels − 1, (N, channels, h, w)."""

    train: NDArray[np.uint8]
    test: NDArray[np.uint8]
    levels: int
    sizes: Sizes
    dynamic: bool = False
    """Whether training images are made black and white each time that they are taken."""
    sha256: str = ""
    """Of the images, where nothing else says which they are."""

    def batch(self, rows: Any, device: torch.device, generator: torch.Generator) -> Tensor:
        """Some training images, as `images` gives them.

        Args:
            rows: indices.
            device: where they are used.
            generator: of the CPU, the same on every device; read only where `dynamic`.
        """
        if not self.dynamic:
            return self.images(self.train, rows, device)
        grey = self.images(self.train, rows, torch.device("cpu"))
        return torch.bernoulli(grey, generator=generator).to(device)

    def images(self, which: NDArray[np.uint8], rows: Any, device: torch.device) -> Tensor:
        """Some rows as float32 in [0, 1], channels last in memory as the networks have them."""
        values = np.asarray(which[rows]).astype(np.float32) / np.float32(self.levels - 1)
        return torch.from_numpy(values).to(device, memory_format=torch.channels_last)

    def about(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        about = {
            "train": list(self.train.shape),
            "test": list(self.test.shape),
            "levels": self.levels,
            "latent": self.sizes.latent,
            "channels": list(self.sizes.channels),
        }
        return {**about, "dataset_sha256": self.sha256} if self.sha256 else about


def load(settings: Settings) -> Source:
    """Return the images of the dataset, and networks with the wanted dimension of z."""
    digest = ""
    if settings.dataset == "digits":
        data, sizes = datasets.digits(), DIGITS
    elif settings.dataset == "mnist":
        data, sizes = datasets.mnist(), MNIST
    elif settings.dataset == "cifar10":
        data, sizes = datasets.cifar10(), CIFAR10
    else:
        data = datasets.pictures(settings.dataset)
        channels, height, width = data.train.shape[1:]
        sizes = sizes_for((channels, height, width))
        digest = f"{sha256(data.train)} {sha256(data.test)}"
    train, test = data.train, data.test
    if settings.binarisation != "none":
        test = datasets.binarised(test, data.levels, settings.binarisation_seed, "test")
    if settings.binarisation == "static":
        train = datasets.binarised(train, data.levels, settings.binarisation_seed, "train")
    sizes = dataclasses.replace(sizes, latent=settings.latent)
    return Source(train, test, data.levels, sizes, settings.binarisation == "dynamic", digest)


def sizes_for(shape: tuple[int, int, int]) -> Sizes:
    """Networks for pictures of any size: those of the dataset whose images are most like them.

    Grey pictures have dense layers, as digits up to 16×16 pixels and as mnist up to 32×32. Colour
    and larger ones have the convolutions of cifar10, as many as halve height and width without a
    remainder; where one of them is odd, dense layers.

    Args:
        shape: channels, height, width.

    Returns:
        The sizes; the dimension of z is mnist's.

    Example:
        >>> [sizes_for((3, side, side)).channels for side in (64, 36, 50)]
        [(32, 64, 128), (32, 64), (32,)]
    """
    channels, height, width = shape
    halvings = min((side & -side).bit_length() - 1 for side in (height, width))
    dense = DIGITS.hidden if height * width <= 16 * 16 else MNIST.hidden
    if halvings == 0 or (channels == 1 and height * width <= 32 * 32):
        return Sizes(shape, MNIST.latent, hidden=dense)
    return Sizes(shape, MNIST.latent, channels=CIFAR10.channels[:halvings])


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
