"""A worker process: it receives jobs over a pipe and sends back progress and results.

Workers are in process groups of their own, so that Ctrl-C reaches them once, from their parent.
They end with their parent, also if it is killed: a thread waits for that.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from mlmcgrad.runs.signals import REQUESTS, Stopped

Report: TypeAlias = Callable[[float], None]
Part: TypeAlias = Callable[..., Any]
"""`part(report, **arguments)`: a function of a module; `report(share)` says how much is done."""

POLL_SECONDS = 0.2
# Settings of glibc, unless the user has chosen them: other systems do not read them.
_GLIBC, _KEPT_BYTES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "1000000000"
# spawn: a forked process would inherit torch's threads in an undefined state
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Ended:
    """A job that has ended, with its result or with an error."""

    name: str
    result: Any = None
    error: Exception | None = None

    @property
    def reason(self) -> str | None:
        """Why it failed; None if it did not."""
        return None if self.error is None else str(self.error) or type(self.error).__name__


class Worker:
    """A process that does one job after another.

    Attributes:
        name: of its job; empty while it has none.
    """

    def __init__(self) -> None:
        self.connection, far_end = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(far_end,))
        with _signals_held(), _memory_held():
            self.process.start()
        far_end.close()
        self.name = ""

    def give(self, function: Part, name: str, arguments: Mapping[str, Any]) -> None:
        """Send it a job."""
        self.name = name
        with suppress(OSError):  # the process has died: `receive` will say so
            self.connection.send((function, name, dict(arguments)))

    def receive(self) -> float | Ended:
        """The share of the job that is done, or the job when it has ended.

        If the process has died, the job ended with an error, and the connection is closed.
        """
        try:
            message: float | Ended = self.connection.recv()
        except (EOFError, OSError):
            self.leave()
            error = ChildProcessError(f"its process ended with {self._exit()}")
            return Ended(self.name, error=error)
        if isinstance(message, Ended):
            self.name = ""
        return message

    def leave(self) -> None:
        """Let the process end: nothing more will be sent to it."""
        self.connection.close()
        self.process.join()

    def _exit(self) -> str:
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        hint = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
        return f"signal {signal.Signals(-code).name}{hint}"


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use this many threads."""
    import torch  # late: a parent that only waits for its workers does not need it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _memory_held() -> Iterator[None]:
    """Processes that start now keep the memory that they free, for their next step (glibc)."""
    new = {name: _KEPT_BYTES for name in _GLIBC if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def _serve(connection: Connection) -> None:
    """Do the jobs that arrive until the parent closes the connection."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _do_jobs(connection)
    finally:
        gc.freeze()  # or Python would look for cycles in all of torch before it ends: a second


def _do_jobs(connection: Connection) -> None:
    with suppress(EOFError, ConnectionError):
        while True:
            function, name, arguments = connection.recv()
            try:
                with threads(1):
                    ended = Ended(name, function(_reporter(connection), **arguments))
            except Stopped as stopped:
                sys.exit(stopped.code)
            except ConnectionError:  # the parent is gone
                return
            except Exception as error:  # the other jobs go on
                ended = Ended(name, error=_portable(error))
            connection.send(ended)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # as if this process had been killed too: whatever it writes can bear that


@contextmanager
def _signals_held() -> Iterator[None]:
    """A process that starts inside gets no signal before it unblocks them: it could only die."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # as `start` does, but it unblocks what it finds blocked
    before = signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reporter(connection: Connection) -> Report:
    last = 0.0

    def report(share: float) -> None:
        nonlocal last
        if time.monotonic() - last > POLL_SECONDS:
            last = time.monotonic()
            connection.send(float(share))

    return report


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note; another one if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(traceback.format_exc())
    return error
