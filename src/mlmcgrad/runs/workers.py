"""A worker process: it receives jobs over a pipe and sends back progress and results.

Workers are in process groups of their own, so that Ctrl-C reaches them once, from their parent. If
the parent is killed, they notice that nobody listens any more and stop.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from mlmcgrad.runs.signals import Stopped

Report: TypeAlias = Callable[[float], None]
Part: TypeAlias = Callable[..., Any]
"""`part(report, **arguments)`: a function of a module; `report(share)` says how much is done."""

POLL_SECONDS = 0.2
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
            return Ended(self.name, error=RuntimeError(f"its process ended with {self._exit()}"))
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


def _serve(connection: Connection) -> None:
    """Do the jobs that arrive until the parent closes the connection."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    with suppress(EOFError, ConnectionError), threads(1):
        while True:
            function, name, arguments = connection.recv()
            try:
                ended = Ended(name, function(_reporter(connection), **arguments))
            except Stopped as stopped:
                sys.exit(stopped.code)
            except ConnectionError:  # the parent is gone
                return
            except Exception as error:  # the other jobs go on
                ended = Ended(name, error=_portable(error))
            connection.send(ended)


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
