"""Files that are written completely or not at all, whatever happens meanwhile.

The bytes go to a new file with a random name and are flushed to the disk, and only then is that
file renamed; the folder is flushed last, so that the new name survives a power cut too. Two writers
never share a temporary file, and an existing file or link is never written through.
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, making its folder if need be; after an error the old file is as it was.

    Raises:
        OSError: the file could not be written; the message names it and says what to do.
    """
    temporary = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            # O_EXCL: neither a file nor a link may be there.
            file = stack.enter_context(temporary.open("xb"))
            stack.callback(temporary.unlink, missing_ok=True)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
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
