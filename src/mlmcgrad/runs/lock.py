"""One process at a time in a run folder: two of them would mix their lines.

Processes that share a folder by claims (`runs.claims`) are in it together, and keep all others out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = "lock"


@contextmanager
def locked(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a run folder, making the folder if need be.

    The system releases the lock when the process ends, however it ends.

    Args:
        folder: the run folder.
        shared: with all others that share it.

    Raises:
        ValueError: another process holds it.
        OSError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _Shared(folder / LOCK) if shared else FileLock(folder / LOCK)
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(
            f"out: another process is using {folder}; wait for it, stop it, or name another folder "
            "with --out"
        ) from error
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot make {folder / LOCK} ({error.strerror}); name another folder with --out",
        ) from error
    try:
        yield
    finally:
        lock.release()


class _Shared:
    """The lock of `FileLock` on the same file, held together with others."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1

    def acquire(self, *, blocking: bool) -> None:
        try:
            import fcntl
        except ImportError as error:
            raise ValueError("join needs a system with fcntl, such as Linux or macOS") from error
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError as error:
            self.release()
            raise Timeout(str(self._path)) from error

    def release(self) -> None:
        os.close(self._descriptor)  # which unlocks it
