"""A process that runs something long: signals, progress bars, texts for a terminal, threads.

SIGINT, SIGTERM and SIGHUP are requests: a run stops within a second and can be resumed. A process
gets SIGHUP when its terminal is closed. Where SIGHUP is ignored, as under nohup, it stays ignored.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

REQUESTS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
RESUME = "continue with the same command and --resume"


class Stopped(KeyboardInterrupt):
    """A run stopped because a signal asked for it.

    Args:
        number: of the signal.
        status: how far the run is, what is saved and how to resume.

    Attributes:
        number: of the signal.
        code: exit code for the process, 128 + the number of the signal.
    """

    def __init__(self, number: int, status: str) -> None:
        super().__init__(f"{signal.Signals(number).name}: {status}")
        self.number, self.code = number, 128 + number


class Signals:
    """Handlers that note the first signal; a Ctrl-C after it raises KeyboardInterrupt.

    Python delivers signals to the main thread only: in other threads nothing is changed.

    Attributes:
        number: the signal that was noted, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.interrupts = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in REQUESTS:
                if number.name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
            _ACTIVE.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        if self in _ACTIVE:
            _ACTIVE.remove(self)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def raise_stopped(self, status: str) -> None:
        """Raise `Stopped` if a signal was noted."""
        if self.number is not None:
            raise Stopped(self.number, status)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        # One request may arrive twice: a shell and the system both send SIGHUP, timeout(1) sends
        # SIGTERM to a process and to its group. Only Ctrl-C means more the second time.
        for again in self._before:
            ctrl_c = again == signal.SIGINT
            signal.signal(again, signal.default_int_handler if ctrl_c else signal.SIG_IGN)
        if self.interrupts:
            raise Stopped(number, "stopped")


_ACTIVE: list[Signals] = []  # the innermost one has the handlers


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Stopped` inside as soon as a signal arrives, or if one was noted before.

    For work that can be abandoned at any point. Without active `Signals`, nothing is changed.
    """
    if not _ACTIVE or threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = _ACTIVE[-1]
    signals.interrupts = True
    try:
        signals.raise_stopped("stopped")
        yield
    finally:
        signals.interrupts = False


def bars(console: Console | None, *numbers: str) -> Progress:
    """Return a live display for a terminal; enter it and add a task for each bar.

    Args:
        console: where to show it; None, or one that is no terminal, shows nothing.
        numbers: format strings for the columns beside a bar, by default the percentage. They may
            use `task`; extra keywords of `add_task` and `update` are in `task.fields`.
    """
    from rich import progress as rich  # late, so that the command line can say that it is missing

    texts = ("{task.description}", *(numbers or ("{task.percentage:3.0f}%",)))
    first, *columns = (rich.TextColumn(text, markup=False) for text in texts)
    return rich.Progress(
        first,
        rich.BarColumn(bar_width=20),
        *columns,
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(compact=True),
        rich.TextColumn("left"),
        console=console,
        transient=True,
        disable=console is None or not console.is_terminal,
    )


def printable(text: str) -> str:
    r"""Replace control characters, which a terminal would obey, by their codes.

    Example:
        >>> printable("\x1b[31mred")
        '\\x1b[31mred'
    """
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use this many threads; on small tensors more than one only wait for each other."""
    import torch  # late: a parent that only waits for its workers does not need it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
