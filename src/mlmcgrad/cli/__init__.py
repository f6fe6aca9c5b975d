"""The command line: `mlmcgrad COMMAND --help` says what each command takes."""

from __future__ import annotations

import gc
import signal
import sys

from mlmcgrad.cli.attention import attentive
from mlmcgrad.cli.streams import lasting
from mlmcgrad.runs.signals import Signals


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for an error, 128 + n for signal n.

    Args:
        arguments: of the command line; by default those of the process, which then ends with it.
    """
    try:
        with lasting(), attentive(), Signals() as signals:
            try:
                with signals.at_once():
                    return _run(sys.argv[1:] if arguments is None else arguments)
            except KeyboardInterrupt as stopped:
                # A run that stopped on request says how far it got, and which signal it was.
                sys.stderr.write(f"mlmcgrad: {stopped if stopped.args else 'interrupted'}\n")
                return int(getattr(stopped, "code", 130))
    finally:
        if arguments is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while Python cleans up,
            gc.freeze()  # which takes a second if it looks for cycles in all of torch


def _run(arguments: list[str]) -> int:
    try:
        from mlmcgrad.cli.commands import main as run
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"mlmcgrad: the command line needs the package {error.name}; "
            "pip install 'mlmcgrad[cli]'\n"
        )
        return 2
    return run(arguments)


__all__ = ["main"]
