"""SIGINT and SIGTERM as requests: a run stops where it can be resumed."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """A signal asked a run to stop, and it did, with everything saved.

    Args:
        number: of the signal.
        status: how far the run is and what is saved.

    Attributes:
        code: exit code for the process, 128 + the number of the signal.
    """

    def __init__(self, number: int, status: str) -> None:
        name = signal.Signals(number).name
        super().__init__(f"{name}: {status}; continue with the same command and --resume")
        self.code = 128 + number


class Signals:
    """While it is entered, the first SIGINT or SIGTERM is only noted; a second one acts at once.

    Outside the main thread Python delivers no signals, and nothing is changed.

    Attributes:
        number: the signal that was noted, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def raise_stopped(self, status: str) -> None:
        """Raise `Stopped` if a signal was noted."""
        if self.number is not None:
            raise Stopped(self.number, status)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
