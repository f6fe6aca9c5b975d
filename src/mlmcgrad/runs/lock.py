"""One process at a time in a run folder: two of them would mix their lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, making the folder if need be.

    The system frees the lock when the process ends, however it ends.

    Raises:
        ValueError: another process holds it.
        OSError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write in {folder} ({error.strerror}); name another folder with --out",
        ) from error
    with file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    f"out: another process is training in {folder}; wait for it, stop it, or name "
                    "another folder with --out"
                ) from error
        yield


__all__ = ["alone"]
