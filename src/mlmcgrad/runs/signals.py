"""SIGINT, SIGTERM and SIGHUP as requests: a run stops where it can be resumed, within a second.

SIGHUP is what a process gets when its terminal is closed. Where it is ignored, as under nohup, it
stays ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

REQUESTS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
RESUME = "continue with the same command and --resume"


class Stopped(KeyboardInterrupt):
    """A signal asked a run to stop, and it did.

    Args:
        number: of the signal.
        status: how far the run is, what is saved and how to go on.

    Attributes:
        number: of the signal.
        code: exit code for the process, 128 + the number of the signal.
    """

    def __init__(self, number: int, status: str) -> None:
        super().__init__(f"{signal.Signals(number).name}: {status}")
        self.number, self.code = number, 128 + number


class Signals:
    """While it is entered, the first request is only noted; Ctrl-C after it acts at once.

    Outside the main thread Python delivers no signals, and nothing is changed.

    Attributes:
        number: the signal that was noted, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in REQUESTS:
                if number.name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def raise_stopped(self, status: str) -> None:
        """Raise `Stopped` if a signal was noted."""
        if self.number is not None:
            raise Stopped(self.number, status)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise `Stopped` inside as soon as a signal comes, or if one was noted before.

        For work that may be left at any point.
        """
        self._at_once = True
        try:
            self.raise_stopped("stopped")
            yield
        finally:
            self._at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        # One request may arrive twice: a shell and the system both send SIGHUP, timeout(1) sends
        # SIGTERM to a process and to its group. Only Ctrl-C means more the second time.
        for again in self._before:
            ctrl_c = again == signal.SIGINT
            signal.signal(again, signal.default_int_handler if ctrl_c else signal.SIG_IGN)
        if self._at_once:
            raise Stopped(number, "stopped")
