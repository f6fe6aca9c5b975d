"""Seconds of training: tests and checkpoints are not what a method costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Runs from the beginning, except while it is paused.

    Args:
        seconds: what it shows at first.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._since: float | None = time.perf_counter()

    @property
    def seconds(self) -> float:
        """What it shows."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still while it is entered."""
        self._seconds, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = time.perf_counter()


__all__ = ["Stopwatch"]
