"""One process at a time in a run folder: two of them would mix their lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, making the folder if need be.

    The system releases the lock when the process ends, however it ends.

    Raises:
        ValueError: another process holds it.
        OSError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
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
