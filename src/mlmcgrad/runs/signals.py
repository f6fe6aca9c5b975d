"""SIGINT and SIGTERM as a wish: a run ends where it can be resumed."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Signals:
    """While it is entered, the first SIGINT or SIGTERM is only noted; a second one acts at once.

    Outside the main thread Python delivers no signals, and nothing is changed.
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

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


__all__ = ["Signals"]
