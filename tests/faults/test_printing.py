"""Nobody can read what a command prints: it does its work, and ends with the right exit code."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.cli.commands import COMMANDS
from mlmcgrad.paper.training import loop
from tests.faults import console, times

SMALL = {
    "train": "train --iterations 4 --batch-size 10 --nll-samples 2 --test-images 4 --out run",
    "bound": "bound --preset smoke --accuracy 0.1 --out run",
    "demo": "demo --truncation 4 --chains 200 --budget 40 --seeds 1 --out run",
    "scaling": "scaling --preset smoke --out run",
    "boltzmann": "boltzmann --preset smoke --data bars --out run",
    "rates": "rates --preset smoke --out run",
    "plan": "plan training --rows 2 --pilot 100 --budget 1e4 --out run",
    "reproduce": "reproduce --preset smoke --seeds 1 --methods br mlmc --out run",
}


def _ascii() -> dict[str, Any]:
    return {"env": {**os.environ, "PYTHONIOENCODING": "ascii"}}


def _c_locale() -> dict[str, Any]:
    names = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return {"env": {**os.environ, **names}}


def _no_reader() -> dict[str, Any]:
    reader, writer = os.pipe()
    os.close(reader)
    return {"stdout": writer, "stderr": writer}


WAYS = [_c_locale, _no_reader, _ascii]
ALL = [(name, way) for name in SMALL for way in WAYS]
FEW = [("bound", _c_locale), ("bound", _no_reader)]


@pytest.mark.parametrize(("name", "way"), ALL if times(0, 1) else FEW)
def test_a_command_does_its_work(
    name: str, way: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    if name == "plan":
        _run(SMALL["train"].replace("--out run", "--out training").split(), tmp_path, way, 0)
    said = _run(SMALL[name].split(), tmp_path, way, 0)
    assert (tmp_path / "run" / "summary.json").exists()
    assert not said or ": run" in said


@pytest.mark.parametrize("way", WAYS[: times(0, len(WAYS))])
@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_and_errors(
    command: list[str], way: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    said = _run([*command, "--help"], tmp_path, way, 0)
    assert not said or "--help" in said
    said = _run([*command, "--≥"], tmp_path, way, 2)
    assert not said or "--" in said


def _run(arguments: list[str], folder: Path, way: Callable[[], dict[str, Any]], code: int) -> str:
    """Run a command to its end; what it printed, if that could be read, has no traceback."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **way()}
    process = console.start(arguments, folder, **options)
    if isinstance(options["stdout"], int) and options["stdout"] > 2:
        os.close(options["stdout"])
    said, _ = process.communicate()
    assert process.returncode == code, said
    assert "Traceback" not in (said or "")
    assert (said or "").isascii()
    return said or ""


IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # whoever closes this terminal now sends SIGHUP
os.execv(sys.executable, [sys.executable, "-m", "mlmcgrad", *sys.argv[1:]])
"""


def test_closing_the_terminal_saves_and_stops(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["train", "--iterations", "100000", "--log-every", "1", "--out", str(out)]
    master, terminal = os.openpty()
    with console.hangups():
        child = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
    os.close(terminal)
    metrics = out / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        os.read(master, 2**16)  # it shows its progress
    os.close(master)
    assert child.wait(timeout=60.0) == 128 + signal.SIGHUP
    state = loop.latest_checkpoint(out)
    assert state is not None
    last = metrics.read_text().splitlines()[-1]
    assert last.startswith(f'{{"iteration": {state["iteration"]},')
