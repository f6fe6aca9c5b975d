"""Claims: which process, on whichever machine, does which job of a run folder that they share.

    taken/NAME.1    the first process that took the job NAME
    taken/NAME.2    the next one, after the first had let it go or had died; and so on

To take a job is to create the next file of its name, which a file system lets one process do only
(O_EXCL, also over NFS). No file is ever removed, so a number means the same process for ever, and
nobody can take what somebody else has taken meanwhile.

The file says which process it is. A thread of that process counts in it as long as the job goes on,
and the last thing it writes is that the job is free again. A process is dead if it is gone from
this machine, or if its count has stood still for `DEAD_SECONDS` by the clock of the one who looks:
the clocks of two machines are never compared.

A process that was only paused, and is taken for dead, finds the file of its successor when it goes
on, and leaves the job.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mlmcgrad.runs.folder import CLAIMS

BEAT_SECONDS, DEAD_SECONDS = 3.0, 45.0
_POLL_SECONDS = 0.2
_FREE = "free"


class LostError(Exception):
    """Another process has taken this job: it is not ours to go on with."""


class Claim:
    """A job that this process has taken; leave the context to let it go.

    Args:
        path: the file that was created for it.
        descriptor: of that file, open for writing.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._next, self._descriptor, self._count = path_after(path), descriptor, 0
        self._header = (json.dumps(_me()) + "\n").encode()
        os.write(descriptor, self._header)
        self._write("0")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self._write(_FREE)
        os.close(self._descriptor)

    def check(self) -> None:
        """Raise a `LostError` if another process has taken the job."""
        if os.path.lexists(self._next):
            raise LostError(f"{self._next} is of another process")

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._count += 1
            with suppress(OSError):  # if it stays like that, others will take the job
                self._write(str(self._count))

    def _write(self, text: str) -> None:
        os.pwrite(self._descriptor, f"{text:>12}\n".encode(), len(self._header))
        os.fsync(self._descriptor)


class Sight(NamedTuple):
    """How a job looks to other processes."""

    free: bool
    host: str  # of the last process that had it, if any
    path: Path  # the file to create in order to take it


class Watch:
    """The claims of a run folder, as a process sees them that looks again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CLAIMS
        self._seen: dict[Path, tuple[bytes, float]] = {}  # what a file held, and since when
        self._last: dict[str, Path] = {}

    def look(self, name: str) -> Sight:
        """Whether a job can be taken."""
        path = self._last.get(name, self._folder / f"{name}.0")
        while os.path.lexists(after := path_after(path)):
            path = after
        self._last[name] = path
        content = _read(path)
        if content is None:  # nobody has ever taken it
            return Sight(True, "", after)
        owner, state = _parse(content)
        before, since = self._seen.get(path, (None, 0.0))
        if content != before:
            since = time.monotonic()
            self._seen[path] = content, since
        dead = time.monotonic() - since >= DEAD_SECONDS or _gone(owner)
        return Sight(state == _FREE or dead, str(owner.get("host", "an unknown host")), after)


def take(path: Path) -> Claim | None:
    """Take a job by creating the file that `Watch.look` names; None if another was quicker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return None
    return Claim(path, descriptor)


@contextmanager
def turn(folder: Path, name: str) -> Iterator[Claim]:
    """Wait until a job is free, and hold it: one process after another."""
    watch = Watch(folder)
    while True:
        sight = watch.look(name)
        if sight.free and (claim := take(sight.path)) is not None:
            break
        time.sleep(_POLL_SECONDS)
    with claim:
        yield claim


def path_after(path: Path) -> Path:
    """The file that the next process creates."""
    return path.with_suffix(f".{int(path.suffix[1:]) + 1}")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parse(content: bytes) -> tuple[dict[str, Any], str]:
    """Who wrote a claim, and its count; nothing if it was killed before it could write that."""
    header, _, state = content.partition(b"\n")
    with suppress(ValueError):
        owner = json.loads(header)
        if isinstance(owner, dict):
            return owner, state.decode(errors="replace").strip()
    return {}, ""


def _me() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "start": _start(pid)}


@cache
def _machine() -> str:
    """Where process numbers mean the same: one boot of one machine, and one container on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def _gone(owner: dict[str, Any]) -> bool:
    """Whether a process of this machine has ended; False for one of another machine."""
    pid = owner.get("pid")
    if owner.get("machine") != _machine() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is of another user
        pass
    return bool(_start(pid) != owner.get("start"))


def _start(pid: int) -> int | None:
    """When a process began, in the system's ticks; None if it has ended, or nobody can say.

    Numbers of processes are used again.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(fields[18])
