"""The command as a user starts it, in a session of its own, so that all its processes are known."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def start(arguments: Sequence[str], folder: Path, **options: Any) -> subprocess.Popen[str]:
    """Start `mlmcgrad` in a folder; what it says on standard error can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    with hangups():
        return subprocess.Popen(
            [sys.executable, "-m", "mlmcgrad", *arguments],
            cwd=folder,
            text=True,
            errors="replace",
            start_new_session=True,
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options},
        )


@contextmanager
def hangups() -> Iterator[None]:
    """What is started inside gets SIGHUP, also if the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def family(process: subprocess.Popen[str]) -> set[int]:
    """The process, its workers and whatever else it has started, as far as they live."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session, *_ = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(session) == process.pid and state != "Z":
            found.add(int(path.name))
    return found


def workers(process: subprocess.Popen[str]) -> set[int]:
    """The worker processes that live."""
    found = set()
    for pid in family(process):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"spawn_main" in command:
            found.add(pid)
    return found


def seconds_until_all_ended(process: subprocess.Popen[str], limit: float) -> float:
    """Wait until nothing of the session lives; what is left after the limit is killed and named."""
    begin = time.monotonic()
    while left := family(process):
        if time.monotonic() - begin > limit:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{len(left)} processes outlive the command by {limit} s")
        time.sleep(0.01)
    return time.monotonic() - begin
