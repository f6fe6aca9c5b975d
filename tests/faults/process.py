"""Commands in processes of their own, forked from one that has loaded everything: so it is quick.

Whatever a command does to its process (signals, memory, files) does not reach the tests.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from mlmcgrad.cli import commands, main
from tests.faults.commands import shortened

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])
AGAIN = 10.0  # seconds between one Ctrl-C and the next
_LIMIT = 8 * 2**30  # bytes of address space: what asks for much more than it needs fails
for _, _target in commands.COMMANDS.values():
    import_module(f"mlmcgrad.{_target.partition(':')[0]}")
for _name in (  # and what they import late
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "sklearn.datasets",
    "torch._dynamo",
    "mlmcgrad.paper.training.loop",
):
    import_module(_name)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    out: str
    err: str
    began: bool  # its own code did; else the options were refused
    stopped: bool  # by SIGINT


def run(
    arguments: list[str], folder: Path, seconds: float, environment: Mapping[str, str] = {}
) -> Ended:
    """Run a command in a folder.

    Args:
        arguments: after `mlmcgrad`.
        folder: working directory; what is printed goes to files beside it.
        seconds: after these it gets a SIGINT, and another one now and then.
        environment: variables to change.
    """
    files = [folder.with_name(f"{folder.name}-{name}") for name in ("out", "err")]
    here, there = SERVER.Pipe(duplex=False)
    options = (arguments, folder, files, dict(environment), there)
    process = SERVER.Process(target=_run, args=options)
    process.start()
    there.close()
    began, stopped = _began(here), False
    process.join(seconds)
    while process.exitcode is None:
        stopped = True
        os.kill(process.pid or 0, signal.SIGINT)
        process.join(AGAIN)
    out, err = (file.read_text(errors="replace") for file in files)
    return Ended(process.exitcode, out, err, began, stopped)


def _began(connection: Connection) -> bool:
    """Wait until the command's own code runs, or its process ends."""
    with connection:
        try:
            return bool(connection.recv())
        except EOFError:
            return False


def _run(
    arguments: list[str],
    folder: Path,
    files: list[Path],
    environment: dict[str, str],
    connection: Connection,
) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(environment)
    vars(sys)["modules"]["distributed"] = None  # no scheduler is waited for
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (_LIMIT, _LIMIT))
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ResourceWarning)  # of files that were open at the SIGINT

    def begin(name: str, package: str | None = None) -> ModuleType:
        connection.send(True)
        return import_module(name, package)

    vars(commands)["import_module"] = begin
    # Not `train`, whose images that replaces: its options are about them.
    simulates = arguments[0] in ("boltzmann", "bound", "demo", "rates", "scaling")
    with shortened() if simulates else nullcontext():
        code = main(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it would come too late
    for thread in {*threading.enumerate()} - {threading.main_thread()}:
        thread.join(100.0)  # workers that are still starting on a busy machine
    assert threading.active_count() == 1
    assert not multiprocessing.active_children()
    sys.exit(code)
