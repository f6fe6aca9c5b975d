"""The command line: `mlmcgrad COMMAND --help` describes each command.

Nothing is imported here that needs a package besides Python, so that a missing one can be named.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from contextlib import suppress

from mlmcgrad.paper.runs.process import Signals, interruptible, printable

_INSTALL = {"distributed": "'mlmcgrad[cluster]'", "tensorboard": "tensorboard"}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for an error, 128 + n for signal n.

    Args:
        arguments: of the command line; by default those of the process, which then ends with it.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that its encoding lacks
    try:
        with Signals():
            try:
                with interruptible():
                    return _run(sys.argv[1:] if arguments is None else arguments)
            except KeyboardInterrupt as stopped:
                # A run that stopped on request says how far it got, and which signal it was.
                say(str(stopped) if stopped.args else "interrupted")
                return int(getattr(stopped, "code", 130))
    finally:
        try:
            sys.stdout.flush()
        except (AttributeError, OSError):  # nobody reads it any more: Python must not try again
            discard_output()
        if arguments is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while Python cleans up,
            gc.freeze()  # which takes a second if it looks for cycles in all of torch


def say(text: str) -> None:
    """Write a line to standard error, if somebody can read it."""
    with suppress(AttributeError, OSError):
        sys.stderr.write(f"mlmcgrad: {printable(text)}\n")
        sys.stderr.flush()


def discard_output() -> None:
    """Send everything that is printed from now on to nowhere."""
    with suppress(AttributeError, OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    try:
        from mlmcgrad.cli.commands import main as run

        return run(arguments)
    except ModuleNotFoundError as error:
        install = _INSTALL.get(error.name or "", "'mlmcgrad[paper]'")
        say(f"the command line needs the package {error.name}; pip install {install}")
        return 2


__all__ = ["main"]
