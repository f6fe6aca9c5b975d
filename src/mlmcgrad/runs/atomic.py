"""Files that are written completely or not at all, whatever happens meanwhile.

The bytes go to a file of another name and are flushed to the disk, and only then is that file
renamed; the folder is flushed last, so that the new name survives a power cut too.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, making its folder if need be; after an error the old file is as it was.

    Raises:
        OSError: the file could not be written; the message names it and says what to do.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(
            error.errno,
            f"cannot write {path.name} in {path.parent} ({error.strerror}); name another folder "
            "with --out, or make room",
        ) from error


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
