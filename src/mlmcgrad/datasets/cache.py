"""The cache: one folder for a dataset, with memory-mapped arrays that are verified when opened.

Files are written in a temporary folder beside `train.npy` and `test.npy` and then renamed, so a
reader sees either the old file or the new one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mlmcgrad.datasets.dataset import Images, expanded
from mlmcgrad.datasets.spec import Spec

VARIABLE = "MLMCGRAD_DATA"
_PREFIX, _STALE_SECONDS = ".making-", 86_400.0


def root() -> Path:
    """The folder named by the variable MLMCGRAD_DATA, or the user's cache folder."""
    if named := os.environ.get(VARIABLE):
        return expanded(named)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("mlmcgrad"))


def open_arrays(folder: Path, spec: Spec) -> dict[str, Images]:
    """Memory-map the arrays "train" and "test", read-only, and verify them.

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
    return arrays


def store(folder: Path, arrays: Mapping[str, Images]) -> None:
    """Write the arrays; if that fails, the old files are still there."""
    with workspace(folder) as room:
        for part, array in arrays.items():
            with (room / f"{part}.npy").open("xb") as file:
                # Not numpy.save, whose errors do not say why the disk refused.
                header = np.lib.format.header_data_from_array_1_0(array)
                np.lib.format.write_array_header_1_0(file, header)
                file.write(array.data)
                file.flush()
                os.fsync(file.fileno())
        for path in room.iterdir():
            path.replace(folder / path.name)


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder inside this one, which is created if necessary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"{_PREFIX}*"):  # left behind by a process that was killed
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        with TemporaryDirectory(dir=folder, prefix=_PREFIX, ignore_cleanup_errors=True) as name:
            yield Path(name)
    except OSError as error:
        reason = f"cannot write to the cache {folder} ({error.strerror or error})"
        remedy = f"free some space, or name another folder with the variable {VARIABLE}"
        raise OSError(error.errno, f"{reason}; {remedy}") from error
