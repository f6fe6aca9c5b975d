"""`mlmcgrad train`: what it prints, what it refuses, and how it stops."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlmcgrad.cli import main
from mlmcgrad.runs import checkpoint
from tests.training import tiny


def test_sigterm_to_the_command(tmp_path: Path) -> None:
    code = "import sys; from mlmcgrad.cli import main; sys.exit(main())"
    out = tmp_path / "run"
    arguments = ["train", "--iterations", "100000", "--out", str(out), "--log-every", "1"]
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + 60.0
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=60.0)
    assert child.returncode == 143, errors
    assert "SIGTERM: stopped after iteration" in errors
    assert "--resume" in errors
    state = checkpoint.latest(out)
    assert state is not None
    assert state["iteration"] == tiny.metrics(out)[-1]["iteration"] >= 1
    assert state["settings"]["batch_size"] == 50


def test_the_command_shows_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--iterations", "2", "--nll-samples", "2", "--out", str(tmp_path)]
    assert main(["train", *arguments]) == 0
    assert "test NLL" in capsys.readouterr().out
    assert main(["train", *arguments]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--resume", "--candidates", "4", *arguments]) == 2
    assert "candidates must be 5" in capsys.readouterr().err
