"""CIFAR-10 comes in three formats; each reader turns one batch into (rows, *shape) uint8.

| suffix | format |
|---|---|
| `.bin` | binary version: for each picture a label byte, then its channels one after the other |
| none   | python version: a pickled dictionary whose `data` are the same rows without the label |
| `.png` | a lossless strip: for each picture one row of pixels, in raster order |
"""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from lzma import LZMAError
from pathlib import Path, PurePosixPath

import numpy as np

from mlmcgrad.datasets.dataset import Images, Progress, quiet
from mlmcgrad.datasets.pickled import read_array
from mlmcgrad.datasets.spec import Spec


def read_binary(data: bytes, spec: Spec) -> Images:
    """Rows of one label byte and the picture."""
    expected = spec.rows * (1 + spec.pixels)
    if len(data) != expected:
        raise ValueError(f"it has {len(data)} bytes, not {expected}: truncated, or another dataset")
    rows = np.frombuffer(data, np.uint8).reshape(spec.rows, 1 + spec.pixels)
    return rows[:, 1:].reshape(spec.rows, *spec.shape)


def read_python(data: bytes, spec: Spec) -> Images:
    """A pickled dictionary, read by an unpickler that admits only plain arrays."""
    array = read_array(data, "data", (spec.rows, spec.pixels))
    return array.reshape(spec.rows, *spec.shape)


def read_strip(data: bytes, spec: Spec) -> Images:
    """A PNG with one picture a row."""
    from PIL import Image

    channels, height, width = spec.shape
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as strip:
            # Known before anything is decoded, so that a small file cannot fill the memory.
            if strip.mode != "RGB" or strip.size != (height * width, spec.rows):
                raise ValueError(
                    f"it is {strip.mode} of size {strip.size}, not RGB of size "
                    f"{(height * width, spec.rows)}"
                )
            pixels = np.asarray(strip)  # (rows, height · width, channels)
    except (
        OSError,
        SyntaxError,
        zlib.error,
        struct.error,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise ValueError(f"it is no readable PNG: {error}") from error
    return pixels.reshape(spec.rows, height, width, channels).transpose(0, 3, 1, 2)


READERS: dict[str, Callable[[bytes, Spec], Images]] = {
    ".bin": read_binary,
    "": read_python,
    ".png": read_strip,
}
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")


def read_source(path: Path, spec: Spec, progress: Progress = quiet) -> dict[str, Images]:
    """Read all batches from a folder or from a tarball, which is not unpacked.

    Args:
        path: the folder that has the batches (or a folder above it, as unpacking the official
            archives makes it), or a tarball of them; any of the three formats.
        spec: which batches, and of what size. The hashes are not checked here.
        progress: told of every batch.

    Returns:
        The arrays "train" and "test".
    """
    if not path.exists():
        raise FileNotFoundError(f"source {path} does not exist; name a folder or a tarball")
    files = _folder(path, spec) if path.is_dir() else _tarball(path, spec)
    arrays = {part: np.empty(spec.array_shape(part), np.uint8) for part in ("train", "test")}
    every = np.split(arrays["train"], len(spec.training)) + np.split(
        arrays["test"], len(spec.testing)
    )
    places = dict(zip(spec.batches, every, strict=True))
    progress("decoding", 0, len(spec.batches))
    for file, data in files:
        batch, suffix = _batch(file, spec)
        if batch not in places:
            raise ValueError(f"source {path} holds {batch} twice; name a folder with one version")
        try:
            places.pop(batch)[:] = READERS[suffix](data, spec)
        except ValueError as error:
            raise ValueError(f"cannot read {file} in {path}: {error}") from error
        progress("decoding", len(spec.batches) - len(places), len(spec.batches))
    if places:
        raise ValueError(
            f"source {path} lacks {', '.join(places)} (with suffix .bin or .png, or none); it must "
            f"hold all of {', '.join(spec.batches)}"
        )
    return arrays


def _batch(file: str, spec: Spec) -> tuple[str, str]:
    """Batch and suffix of a file name; the batch is empty if the file is none."""
    batch, dot, suffix = file.partition(".")
    return (batch, dot + suffix) if batch in spec.batches and dot + suffix in READERS else ("", "")


def _limit(file: str, size: int, spec: Spec) -> None:
    """No file of a batch is larger than this: labels, names of pictures and headers are small."""
    if size > (most := 2 * spec.rows * spec.pixels + 2**20):
        raise ValueError(f"{file} has {size} bytes, more than {most}: it is no batch of pictures")


def _folder(path: Path, spec: Spec) -> Iterator[tuple[str, bytes]]:
    for folder in (path / name for name in _FOLDERS):
        for suffix in READERS:
            files = [folder / f"{batch}{suffix}" for batch in spec.batches]
            if found := [file for file in files if file.is_file()]:
                for file in found:
                    _limit(file.name, file.stat().st_size, spec)
                    yield file.name, file.read_bytes()
                return


def _tarball(path: Path, spec: Spec) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts:
                    raise ValueError(f"tarball {path} holds {member.name!r}, outside of itself")
                if not member.isreg() or not _batch(place.name, spec)[0]:
                    continue
                _limit(member.name, member.size, spec)
                if (file := archive.extractfile(member)) is not None:
                    yield place.name, file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error, LZMAError) as error:
        raise ValueError(f"source {path} is no readable tarball: {error}") from error


__all__ = ["READERS", "read_binary", "read_python", "read_source", "read_strip"]
