"""A dataset: two uint8 arrays of images. The digits, and your own pictures.

`binarised` draws black and white images: a pixel is white with probability equal to its grey value.
It draws them once, with a seed that is not the run's: then all runs have the same images, and
numbers compare. The draws depend on no version of any library: the bits of PCG64 are fixed, and a
pixel of value v is white where the upper 32 of 64 bits are below ⌊v · 2³² / (levels − 1)⌋.

Reference: R. Salakhutdinov and I. Murray, "On the Quantitative Analysis of Deep Belief Networks",
ICML 2008 (a binarisation drawn once; theirs is another draw).

`digits` are the 8×8 handwritten digits that ship with scikit-learn: 1797 images, 17 grey values.
They are sorted by SHA-256("mlmcgrad digits i") for image i; the first 1500 are for training, the
other 297 for testing. So the split depends on no random number generator and on no version of any
library.

`pictures` reads a file `NAME.npz` with the arrays `train` and `test`, which
`numpy.savez("NAME.npz", train=…, test=…)` or `savez_compressed` writes. Both arrays are uint8,
values 0 to 255, of one of these shapes with the same picture size; C is 1 (grey) or 3 (red, green,
blue):

    (N, height, width)   (N, height, width, C)   (N, C, height, width)

Nothing in the file is ever run: arrays of Python objects are refused.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Images: TypeAlias = NDArray[np.uint8]
Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the name of a task, how much of it is done, and its total (None if unknown)."""

DIGITS_SHA256 = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
_LAYOUTS = "(N, height, width), (N, height, width, C) or (N, C, height, width) with C = 1 or 3"
_MAKE = "numpy.savez(file, train=..., test=...)"
_ROWS = 1000  # at a time: 8 bytes of noise for each pixel


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images for training and for testing.

    The arrays are read-only. `data.train[rows]` with an index array is a copy of these rows; only
    these rows of a memory-mapped array are read.
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
        """Divide by levels − 1, so that values are float32 in [0, 1].

        Args:
            images: uint8, any shape: rows of `train` or `test`.

        Returns:
            A new array of the same shape.

        Example:
            >>> data = digits()
            >>> batch = data.as_floats(data.train[:50])
            >>> batch.shape, float(batch.min()), float(batch.max())
            ((50, 1, 8, 8), 0.0, 1.0)
        """
        if images.dtype != np.uint8 or images.max(initial=0) >= self.levels:
            raise ValueError(
                f"images must be uint8 below {self.levels}, like the rows of train and test; got "
                f"{images.dtype} up to {images.max()}"
            )
        return images.astype(np.float32) / np.float32(self.levels - 1)


def digits() -> Dataset:
    """Return the digits, split into 1500 for training and 297 for testing, the same everywhere.

    Returns:
        A dataset with `train` (1500, 1, 8, 8), `test` (297, 1, 8, 8) and `levels` 17.

    Raises:
        ValueError: scikit-learn's digits are not those of this split.

    Example:
        >>> digits().train.shape
        (1500, 1, 8, 8)

    Reference: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
    Learning Repository, 1998 (its test set).
    """
    try:
        import sklearn  # takes half a second, so not at the top
    except ModuleNotFoundError as error:
        remedy = "digits come with the package scikit-learn; pip install 'mlmcgrad[paper]'"
        raise ModuleNotFoundError(remedy, name=error.name) from error
    images = _embedded()
    if (digest := sha256(images)) != DIGITS_SHA256:
        raise ValueError(
            f"the digits of scikit-learn {sklearn.__version__} have the SHA-256 {digest}, not "
            f"{DIGITS_SHA256}, so results would not compare; install the version in constraints.txt"
        )
    images = images[split_order()]
    images.setflags(write=False)
    source = f"scikit-learn {sklearn.__version__}"
    return Dataset("digits", images[:1500], images[1500:], levels=17, source=source)


def split_order() -> list[int]:
    """Return the image numbers in the order of the hashes of their names."""
    return sorted(range(1797), key=lambda i: hashlib.sha256(b"mlmcgrad digits %d" % i).digest())


def _embedded() -> Images:
    from sklearn.datasets import load_digits

    return load_digits().images.astype(np.uint8)[:, None]  # (1797, 1, 8, 8)


def pictures(path: str | Path) -> Dataset:
    """Return the pictures of a file, as uint8 arrays in memory.

    Args:
        path: the file.

    Returns:
        A dataset with `train` (N, C, height, width), `test` (M, C, height, width), `levels` 256.

    Raises:
        ValueError: the file holds something else, or is damaged; the message says how.
        OSError: the file cannot be read.
    """
    path = expanded(path)
    arrays = _load(path)
    train, test = (_channels_first(arrays[p], f"dataset {path}: {p}") for p in ("train", "test"))
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"dataset {path}: pictures of train and test differ, {train.shape[1:]} and "
            f"{test.shape[1:]} (channels, height, width)"
        )
    return Dataset(path.name, train, test, levels=256, source=str(path.resolve()))


def _load(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays "train" and "test"."""
    try:
        with path.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise ValueError("not a zip file")
            with np.load(stream, allow_pickle=False) as file:
                return {part: np.asarray(file[part]) for part in ("train", "test")}
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"dataset {path} does not exist; name digits, mnist, cifar10 or a file NAME.npz"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise OSError(error.errno, f"cannot read the dataset {path} ({reason})") from error
    except Exception as error:  # damaged bytes make the parsers raise nearly anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"dataset {path} is not a readable .npz ({reason}); write it with {_MAKE}"
        ) from error


def _channels_first(array: NDArray[Any], what: str) -> Images:
    """Return the pictures as a read-only array (N, C, height, width)."""
    shape = array.shape
    if array.dtype != np.uint8:
        raise ValueError(f"{what} is {array.dtype}, not uint8; convert it to values 0 to 255")
    if array.ndim == 3:
        array = array[:, None]
    first, last = (array.ndim == 4 and array.shape[axis] in (1, 3) for axis in (1, -1))
    if 0 in shape or not (first or last):
        raise ValueError(f"{what} has the shape {shape}, not {_LAYOUTS}")
    if len(shape) == 4 and first and last:
        remedy = "make the picture higher and wider than 3 pixels"
        raise ValueError(f"{what} has the shape {shape}: channels may be first or last; {remedy}")
    if not first:
        array = array.transpose(0, 3, 1, 2)
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def binarised(images: Images, levels: int, seed: int, part: str) -> Images:
    """Draw images whose pixels are 0 or levels − 1.

    Args:
        images: values 0, …, levels − 1, (N, …).
        levels: number of grey levels.
        seed: seed of the draws.
        part: "train" or "test"; the two have independent draws.

    Returns:
        A new read-only array of the same shape; the same arguments give the same bits.

    Example:
        >>> grey = np.array([[[[0, 128, 255]]]], np.uint8)
        >>> binarised(np.repeat(grey, 8, 2), 256, seed=0, part="test").sum(2).tolist()
        [[[0, 1275, 2040]]]
    """
    bits = np.random.PCG64([seed, ("train", "test").index(part)])
    thresholds = (np.arange(levels, dtype=np.uint64) << np.uint64(32)) // np.uint64(levels - 1)
    result = np.empty(images.shape, np.uint8)
    for begin in range(0, len(images), _ROWS):
        rows = np.asarray(images[begin : begin + _ROWS])
        noise = bits.random_raw(rows.size).reshape(rows.shape) >> np.uint64(32)
        result[begin : begin + _ROWS] = (noise < thresholds[rows]) * np.uint8(levels - 1)
    result.setflags(write=False)
    return result


def sha256(array: Images) -> str:
    """Return the SHA-256 of the bytes in C order, as hexadecimal digits."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def expanded(path: str | Path) -> Path:
    """Return the path with the home folder for ~, unchanged if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111, Path.expanduser raises if there is none


def quiet(task: str, done: int, total: int | None) -> None:
    """Show no progress."""
