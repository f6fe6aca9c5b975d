"""`mlmcgrad train`: what it prints, what it refuses, and how it stops."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mlmcgrad.cli import main
from mlmcgrad.paper.training import loop
from tests.paper.training import tiny


def test_sigterm_to_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    metrics = out / "metrics.jsonl"

    def stop() -> None:
        while not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    arguments = ["train", "--iterations", "100000", "--out", str(out), "--log-every", "1"]
    assert main(arguments) == 143
    errors = capsys.readouterr().err
    assert "SIGTERM: stopped after iteration" in errors
    assert "--resume" in errors
    state = loop.latest_checkpoint(out)
    assert state is not None
    assert state["iteration"] == tiny.metrics(out)[-1]["iteration"] >= 1
    assert state["settings"]["batch_size"] == 50


def test_tensorboard_by_the_command(tmp_path: Path) -> None:
    arguments = ["--nll-samples", "2", "--log-every", "1", "--tensorboard", "--out", str(tmp_path)]
    for iterations in ("2", "3"):
        assert main(["train", "--iterations", iterations, "--resume", *arguments]) == 0
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    bounds = [(event.step, event.value) for event in events.Scalars("bound")]
    rows = [row for row in tiny.metrics(tmp_path) if "bound" in row]
    assert bounds == [(row["iteration"], float(np.float32(row["bound"]))) for row in rows]
    assert [step for step, _ in bounds] == [1, 2, 3]
    assert [event.step for event in events.Scalars("nll")] == [3]


def test_a_file_of_pictures_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "[bold]" / "mine.npz"  # no markup
    path.parent.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (30, 6, 6), dtype=np.uint8)
    np.savez(path, train=images[:20], test=images[20:])
    out = tmp_path / "run"
    arguments = ["--dataset", str(path), "--batch-size", "5", "--nll-samples", "2"]
    arguments += ["--binarisation", "dynamic", "--out", str(out)]
    assert main(["train", "--iterations", "2", *arguments]) == 0
    assert f"mlmc on {path}: test NLL" in capsys.readouterr().out
    assert main(["train", "--iterations", "3", "--resume", *arguments]) == 0
    assert tiny.metrics(out)[-1]["iteration"] == 3
    for wrong, said in (("mine.png", "or a file NAME.npz"), ("no.npz", "does not exist")):
        assert main(["train", "--dataset", wrong, "--out", str(tmp_path / "other")]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "other").exists()


def test_the_command_shows_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--iterations", "2", "--nll-samples", "2", "--out", str(tmp_path)]
    assert main(["train", *arguments]) == 0
    assert "test NLL" in capsys.readouterr().out
    assert main(["train", *arguments]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--resume", "--candidates", "4", *arguments]) == 2
    assert "candidates must be 5" in capsys.readouterr().err
