"""Training runs side by side: failures are isolated, signals save, killed processes are noticed."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.experiments.reproduce import fleet
from mlmcgrad.experiments.reproduce.fleet import complete, run_fleet, share_fleet
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.claims import LostError
from mlmcgrad.runs.signals import Stopped
from mlmcgrad.training.config import Config, Settings

QUIET = Console(quiet=True)
SMALL = {"batch_size": 10, "nll_samples": 5, "test_images": 5, "log_every": 2, "resume": True}
LONG = 200_000


def _runs(folder: Path, names: str, **changes: Any) -> dict[str, Settings]:
    settings: dict[str, Any] = {**SMALL, "iterations": 4, **changes}
    return {name: Config(out=folder / name, **settings).settings() for name in names}


def test_a_failed_run_does_not_take_the_others_down(tmp_path: Path) -> None:
    runs = _runs(tmp_path, "abcd") | _runs(tmp_path, "b", device="nowhere")
    errors = run_fleet(runs, 2, QUIET)
    assert set(errors) == {"b"}
    assert errors["b"].startswith("device must be cpu")
    assert records.read_json(tmp_path / "b" / "error.json") == {"error": errors["b"]}
    assert [complete(runs[name]) for name in "abcd"] == [True, False, True, True]
    # The next time only the failed one is tried; it succeeds, and its error is forgotten.
    times = {name: (tmp_path / name / "summary.json").stat().st_mtime_ns for name in "acd"}
    runs["b"] = _runs(tmp_path, "b")["b"]
    assert run_fleet(runs, 2, QUIET) == {}
    assert complete(runs["b"])
    assert not (tmp_path / "b" / "error.json").exists()
    for name, before in times.items():
        assert (tmp_path / name / "summary.json").stat().st_mtime_ns == before


def test_a_failed_run_of_a_shared_fleet_is_named_everywhere(tmp_path: Path) -> None:
    """One process fails, one waits for it: both say so, and neither waits for ever."""
    runs = _runs(tmp_path, "ab") | _runs(tmp_path, "b", device="nowhere")
    (tmp_path / "b").mkdir()
    records.write_json(tmp_path / "b" / "error.json", {"error": "of an earlier trial"})
    found: list[dict[str, str]] = []
    other = threading.Thread(target=lambda: found.append(share_fleet(runs, tmp_path, 1, QUIET)))
    other.start()
    found.append(share_fleet(runs, tmp_path, 1, QUIET))
    other.join()
    for errors in found:
        assert set(errors) == {"b"}
        assert errors["b"].startswith("device must be cpu")
    assert complete(runs["a"])
    assert not (tmp_path / "taken" / "a.2").exists()
    runs["b"] = _runs(tmp_path, "b")["b"]
    assert share_fleet(runs, tmp_path, 1, QUIET) == {}
    assert complete(runs["b"])
    assert not (tmp_path / "b" / "error.json").exists()


def test_an_error_after_a_run_was_taken_over_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes a run over removes half-written files: the other one's writing then fails."""
    (settings,) = _runs(tmp_path, "a").values()
    settings.out.mkdir(parents=True)
    taken = False

    def report(share: float) -> None:
        if taken:
            raise LostError("another process has it")

    def train(*arguments: object, **options: object) -> None:
        nonlocal taken
        taken = True
        raise FileNotFoundError("cannot write")

    monkeypatch.setattr("mlmcgrad.training.loop.train", train)
    with pytest.raises(LostError):
        fleet._train_claimed(report, settings, None)
    assert not list(settings.out.iterdir())


def _when_training(folder: Path, act: object) -> threading.Thread:
    """Call something once the run in the folder is going on."""

    def wait() -> None:
        metrics = folder / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        act()  # type: ignore[operator]

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_process_that_dies_takes_only_its_run_with_it(tmp_path: Path) -> None:
    runs = {**_runs(tmp_path, "a", iterations=LONG), **_runs(tmp_path, "bc")}

    def kill() -> None:
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)

    thread = _when_training(tmp_path / "a", kill)
    errors = run_fleet(runs, 1, QUIET)
    thread.join()
    assert set(errors) == {"a"}
    assert "signal SIGKILL (the system does that when memory runs out)" in errors["a"]
    assert complete(runs["b"])
    assert complete(runs["c"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_every_run(tmp_path: Path, number: int) -> None:
    runs = _runs(tmp_path, "ab", iterations=LONG)
    thread = _when_training(tmp_path / "a", lambda: os.kill(os.getpid(), number))
    with pytest.raises(
        Stopped, match="everything finished is saved; continue with the same command and --resume"
    ):
        run_fleet(runs, 2, QUIET)
    thread.join()
    assert not multiprocessing.active_children()
    assert not any(complete(config) for config in runs.values())
    name = max((tmp_path / "a" / "checkpoints").glob("*.pt"))
    reached = int(name.stem.split("-")[1])
    rows = records.read_lines(tmp_path / "a" / "metrics.jsonl")
    assert rows[-1]["iteration"] <= reached < LONG
    assert not (tmp_path / "a" / "error.json").exists()
