"""Pictures of yours: a file `NAME.npz` with the arrays `train` and `test`.

Made by `numpy.savez("NAME.npz", train=…, test=…)` or `savez_compressed`. Both are uint8, values 0
to 255, of one of these shapes with the same picture size; C is 1 (grey) or 3 (red, green, blue):

    (N, height, width)   (N, height, width, C)   (N, C, height, width)

The headers are checked before any pixel is read, and nothing in the file is ever run: arrays of
Python objects are refused.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np

from mlmcgrad.datasets.dataset import Dataset, Images, expanded

PARTS = ("train", "test")
_CHANNELS = (1, 3)
_LAYOUTS = "(N, height, width), (N, height, width, C) or (N, C, height, width) with C = 1 or 3"
_MAKE = "numpy.savez(file, train=..., test=...)"


def pictures(path: str | Path) -> Dataset:
    """The pictures of a file, as uint8 arrays in memory.

    Args:
        path: the file.

    Returns:
        A dataset with `train` (N, C, height, width), `test` (M, C, height, width), `levels` 256.

    Raises:
        ValueError: it holds something else, or is damaged; the message says which and how.
        OSError: it cannot be read.
    """
    path = expanded(path)
    shapes(path)
    with _readable(path), np.load(path, allow_pickle=False) as file:
        train, test = (_channels_first(file[part], f"{path}: {part}") for part in PARTS)
    return Dataset(path.name, train, test, levels=256, source=str(path.resolve()))


def shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays as they are in the file, from their headers alone; `prod` is bytes.

    Raises:
        ValueError: the file does not hold pictures to train on and to test on.
        OSError: it cannot be read.
    """
    path = expanded(path)
    with _readable(path), zipfile.ZipFile(path) as archive:
        found = {part: _header(archive, f"{part}.npy") for part in PARTS}
    images = []
    for part, header in found.items():
        if header is None:
            raise ValueError(f"dataset {path} has no array {part!r}; write both with {_MAKE}")
        shape, dtype, complete = header
        if dtype != np.uint8:
            remedy = "convert it to uint8 with values 0 to 255"
            raise ValueError(f"dataset {path}: {part} is {dtype}, not uint8; {remedy}")
        images.append(_picture(shape, f"dataset {path}: {part}"))
        if not complete:
            raise ValueError(f"dataset {path}: {part} has not the {prod(shape)} bytes of its shape")
    if images[0] != images[1]:
        sizes = " and ".join(map(str, images))
        raise ValueError(
            f"dataset {path}: pictures of train and test differ, {sizes} (channels, height, width)"
        )
    return {part: header[0] for part, header in found.items() if header is not None}


def _header(
    archive: zipfile.ZipFile, name: str
) -> tuple[tuple[int, ...], np.dtype[np.generic], bool] | None:
    """Shape and dtype of an array, and whether the file is as long as that; None if not there."""
    if name not in archive.namelist():
        return None
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        return shape, dtype, archive.getinfo(name).file_size - file.tell() == prod(shape)


def _picture(shape: tuple[int, ...], what: str) -> tuple[int, int, int]:
    """Channels, height and width of the pictures of an array."""
    if 0 in shape:
        raise ValueError(f"{what} has the shape {shape}: no pictures; put at least one there")
    if len(shape) == 3:
        return 1, shape[1], shape[2]
    first, last = (len(shape) == 4 and shape[axis] in _CHANNELS for axis in (1, -1))
    if first and last:
        remedy = "make the picture higher and wider than 3 pixels"
        raise ValueError(f"{what} has the shape {shape}: channels may be first or last; {remedy}")
    if not first and not last:
        raise ValueError(f"{what} has the shape {shape}, not {_LAYOUTS}")
    return (shape[1], shape[2], shape[3]) if first else (shape[3], shape[1], shape[2])


def _channels_first(array: Images, what: str) -> Images:
    channels, height, width = _picture(array.shape, what)
    if array.ndim == 4 and array.shape[1:] != (channels, height, width):
        array = array.transpose(0, 3, 1, 2)
    array = np.ascontiguousarray(array.reshape(-1, channels, height, width))
    array.setflags(write=False)
    return array


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Explain what goes wrong inside with the file and what it should be."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"dataset {path} does not exist; name a file .npz") from error
    except OSError as error:
        reason = error.strerror or error
        raise OSError(error.errno, f"cannot read the dataset {path} ({reason})") from error
    except MemoryError:
        raise
    except Exception as error:  # damaged bytes make the parsers raise nearly anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"dataset {path} is not a readable .npz ({reason}); write it with {_MAKE}"
        ) from error
