"""What a dataset is: two uint8 arrays of images, and how they become numbers in [0, 1]."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Images: TypeAlias = NDArray[np.uint8]
Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the name of a task, how much of it is done, and its total (None if unknown)."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images for training and for testing.

    The arrays are read-only. `data.train[rows]` with an index array is a copy of these rows; of a
    memory-mapped array nothing else is read.
    """

    name: str
    train: Images  # (N, channels, height, width)
    test: Images  # (M, channels, height, width)
    _: KW_ONLY
    levels: int
    """Values are 0, …, levels − 1."""
    source: str
    """Where the images came from."""
    folder: Path | None = None
    """The cache folder, if there is one."""

    def as_floats(self, images: Images) -> NDArray[np.float32]:
        """Values divided by levels − 1: float32 in [0, 1].

        Args:
            images: uint8, any shape: rows of `train` or `test`.

        Returns:
            A new array of the same shape.

        Example:
            >>> from mlmcgrad.datasets import digits
            >>> data = digits()
            >>> batch = data.as_floats(data.train[:50])
            >>> batch.shape, float(batch.min()), float(batch.max())
            ((50, 1, 8, 8), 0.0, 1.0)
        """
        if images.dtype != np.uint8:
            raise ValueError(
                f"images must be uint8, got {images.dtype}; pass rows of train or test"
            )
        if images.size and int(images.max()) >= self.levels:
            raise ValueError(
                f"images must have values below {self.levels} for {self.name}, got "
                f"{int(images.max())}; are they from another dataset?"
            )
        return images.astype(np.float32) / np.float32(self.levels - 1)


def sha256(array: Images) -> str:
    """SHA-256 of the bytes in C order, as hexadecimal digits."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def expanded(path: str | Path) -> Path:
    """The path, with the home folder for ~; as it is where that names nobody's."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def quiet(task: str, done: int, total: int | None) -> None:
    """Show no progress."""
