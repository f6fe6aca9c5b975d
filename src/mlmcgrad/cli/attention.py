"""Signals are noticed at once, whatever the process is doing.

Python calls its handlers between two of its own instructions. One operation of torch, or the
search for a name in the network, may take long; a thread hears of a signal all the same. It says
so, and it ends the process at the second Ctrl-C if that one is not answered either.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mlmcgrad.runs.signals import REQUESTS

_NOTICE_SECONDS = 0.2  # what stops sooner need not say that it will
_PATIENCE_SECONDS = 1.0


@contextmanager
def attentive() -> Iterator[None]:
    """While it is entered, a thread answers signals; outside the main thread there are none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ears, mouth = socket.socketpair()
    mouth.setblocking(False)
    before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    done = threading.Event()
    thread = threading.Thread(target=_answer, args=(ears, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        done.set()
        mouth.close()
        thread.join()
        ears.close()


def _answer(ears: socket.socket, done: threading.Event) -> None:
    asked = False
    while heard := ears.recv(1):  # the number of a signal; nothing once the other end is closed
        number = heard[0]
        if asked and number == signal.SIGINT and not done.wait(_PATIENCE_SECONDS):
            os._exit(128 + number)  # as if it had been killed: whatever it writes can bear that
        if not asked and number in REQUESTS:
            asked = True
            if done.wait(_NOTICE_SECONDS):
                continue
            name = signal.Signals(number).name
            line = f"\nmlmcgrad: {name}: stopping; press Ctrl-C again to stop at once\n"
            with suppress(OSError):  # not by the stream, which the main thread may be writing to
                os.write(2, line.encode())
