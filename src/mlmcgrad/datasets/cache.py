"""The cache: one folder for a dataset, with memory-mapped arrays that are verified when opened.

    train.npy, test.npy   the pictures
    record.json           where they came from, their hashes and sizes

Files are made in a temporary folder beside them and renamed when they are on the disk: whatever
happens, a file is the old one or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import numpy as np

from mlmcgrad.datasets.dataset import Images, sha256
from mlmcgrad.datasets.spec import Spec

VARIABLE, RECORD = "MLMCGRAD_DATA", "record.json"
_PREFIX, _STALE_SECONDS = ".making-", 86_400.0


def root() -> Path:
    """The folder named by the variable MLMCGRAD_DATA, or the user's folder for caches."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("mlmcgrad"))


def open_arrays(folder: Path, spec: Spec) -> dict[str, Images]:
    """Memory-map the arrays "train" and "test", read-only, and verify their hashes.

    Raises:
        FileNotFoundError: if a file is not there.
        ValueError: if a file is not what it should be; the message names it and says why.
    """
    return {part: _open(folder / f"{part}.npy", spec, part) for part in ("train", "test")}


def origin(folder: Path) -> str:
    """Where the cached arrays came from, as far as the record says."""
    try:
        return str(json.loads((folder / RECORD).read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown: its record.json is gone, but the hashes are right"


def store(folder: Path, arrays: Mapping[str, Images], source: str) -> None:
    """Write the arrays and their record; if that fails, the old files are still there."""
    record: dict[str, object] = {"source": source}
    with workspace(folder) as room:
        try:
            for part, array in arrays.items():
                with (room / f"{part}.npy").open("xb") as file:
                    # Not numpy.save, which does not say why the disk refused.
                    header = np.lib.format.header_data_from_array_1_0(array)
                    np.lib.format.write_array_header_1_0(file, header)
                    file.write(array.data)
                    _to_disk(file)
                    record[part] = {"sha256": sha256(array), "bytes": file.tell()}
            with (room / RECORD).open("xb") as file:
                file.write(json.dumps(record, indent=2).encode() + b"\n")
                _to_disk(file)
            for name in (*(f"{part}.npy" for part in arrays), RECORD):
                (room / name).replace(folder / name)
        except OSError as error:
            raise _refused(folder, error) from error


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder inside this one, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_PREFIX}*"):  # by a process that was killed
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        room = TemporaryDirectory(dir=folder, prefix=_PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise _refused(folder, error) from error
    with room as name:
        yield Path(name)


def _open(path: Path, spec: Spec, part: str) -> Images:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise
    except Exception as error:  # numpy's parser meets arbitrary bytes here
        raise ValueError(f"{path} is damaged ({error})") from error
    if array.dtype != np.uint8 or array.shape != spec.array_shape(part):
        raise ValueError(
            f"{path} is damaged ({array.dtype} of shape {array.shape}, not uint8 of shape "
            f"{spec.array_shape(part)})"
        )
    if (found := sha256(array)) != spec.sha256[part]:
        raise ValueError(f"{path} is damaged (it hashes to {found}, not to {spec.sha256[part]})")
    return array


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _refused(folder: Path, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"cannot write to the cache {folder} ({error.strerror or error}); make room there, or name "
        f"another folder with the variable {VARIABLE}",
    )


__all__ = ["VARIABLE", "open_arrays", "origin", "root", "store", "workspace"]
