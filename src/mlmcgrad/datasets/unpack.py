"""Some files of a folder or a tarball, which is not unpacked; links and other names are ignored."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from lzma import LZMAError
from pathlib import Path, PurePosixPath


def files(
    path: Path, below: Sequence[str], wanted: Callable[[str, int], bool]
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files that are wanted.

    Args:
        path: a folder, or a tarball with any compression.
        below: folders inside a folder in which the files may be, if they are not in itself.
        wanted: called with the name and the size of a file, before it is read; what it raises for
            one that is too large ends the reading.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: it is neither; found while iterating.
    """
    if not path.exists():
        raise FileNotFoundError(f"source {path} does not exist; name a folder or a tarball")
    return _folder(path, below, wanted) if path.is_dir() else _tarball(path, wanted)


def _folder(
    path: Path, below: Sequence[str], wanted: Callable[[str, int], bool]
) -> Iterator[tuple[str, bytes]]:
    for folder in (path, *(path / name for name in below)):
        every = [file for file in sorted(folder.glob("*")) if file.is_file()]
        chosen = [file for file in every if wanted(file.name, file.stat().st_size)]
        yield from ((file.name, file.read_bytes()) for file in chosen)
        if chosen:
            return


def _tarball(path: Path, wanted: Callable[[str, int], bool]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts:
                    raise ValueError(f"tarball {path} holds {member.name!r}, outside of itself")
                if member.isreg() and wanted(place.name, member.size):
                    file = archive.extractfile(member)
                    yield place.name, file.read() if file is not None else b""
    except (tarfile.TarError, EOFError, OSError, zlib.error, LZMAError) as error:
        # The first line of several: the others are about each compression that was tried.
        reason = str(error).partition("\n")[0].rstrip(":")
        raise ValueError(f"source {path} is not a readable tarball: {reason}") from error
