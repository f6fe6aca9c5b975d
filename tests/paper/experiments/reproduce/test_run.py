"""`mlmcgrad reproduce`: end to end, interrupted on the way, and with runs that fail."""

import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.paper.experiments.reproduce import run as reproduce
from mlmcgrad.paper.experiments.reproduce.sentences import takeaways
from mlmcgrad.paper.experiments.reproduce.settings import Reproduce, decide
from mlmcgrad.paper.runs import folder as records
from mlmcgrad.paper.runs.folder import locked
from mlmcgrad.paper.runs.process import Stopped
from mlmcgrad.paper.training.config import Config
from tests.faults import times
from tests.folders import content
from tests.paper.experiments.reproduce import fabricated

SMALL = ("--preset", "smoke", "--optimizer", "amsgrad", "--methods", "br", "mlmc")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smoke reproduction in this process that all tests share; none of them changes it."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(["reproduce", *SMALL, "--jobs", "1", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def printed(whole: Path) -> str:
    """The output of the same command with --resume, which has nothing left to train."""
    text = (whole / "summary.json").read_text()
    with redirect_stdout(io.StringIO()) as output:
        assert main(["reproduce", *SMALL, "--jobs", "1", "--out", str(whole), "--resume"]) == 0
    assert (whole / "summary.json").read_text() == text
    return output.getvalue()


def _findings(folder: Path) -> dict[str, Any]:
    (summary,) = json.loads((folder / "summary.json").read_text())["reproductions"]
    assert isinstance(summary, dict)
    return summary


def test_smoke_run(whole: Path) -> None:
    summary = _findings(whole)
    assert {(claim["quantity"], claim["axis"]) for claim in summary["claims"]} == {
        ("decay", "iteration"),
        ("rate", "iteration"),
        *(("nll", axis) for axis in ("iteration", "evaluations", "seconds")),
        *((name, axis) for name in ("gradient", "budget") for axis in ("evaluations", "seconds")),
    }
    assert {(row["method"], row["optimizer"], row["seed"]) for row in summary["final"]} == {
        (method, "amsgrad", seed) for method in ("br", "mlmc") for seed in (1, 2)
    }
    for row in summary["final"]:
        run = json.loads(
            (whole / "runs" / f"amsgrad-{row['method']}-{row['seed']}" / "summary.json").read_text()
        )
        assert (run["nll"], run["evaluations"]) == (row["nll"], row["evaluations"])
        assert row["seconds"] == pytest.approx(run["seconds"], abs=0.1)
    for row in summary["diagnostics"]:
        assert 0.0 < row["decoded_again"] < row["evaluations"]
    assert (whole / "report.html").stat().st_size > 10_000


def test_it_ends_with_a_table_sentences_and_the_report(whole: Path, printed: str) -> None:
    """Five budgets: the last is the largest that both methods have spent, where a claim is too."""
    findings = fabricated.read_back(_findings(whole))
    rows = [re.findall(r"[\d,.]+", line) for line in printed.splitlines() if line[:1] == "│"]
    assert len(rows) == 5
    budgets = [int(budget.replace(",", "")) for budget, *_ in rows]
    assert budgets == sorted(budgets)
    (claim,) = (c for c in findings.claims if (c.quantity, c.axis) == ("nll", "evaluations"))
    assert float(rows[-1][2]) - float(rows[-1][1]) == pytest.approx(claim.value, abs=0.02)
    for sentence in takeaways(findings):
        assert f"{sentence}\n" in printed
    flat = printed.replace("\n", "")
    assert "4 of them complete" in flat
    assert f"all {len(findings.claims)} claims: {whole / 'claims.md'}" in flat
    assert f"report: {whole / 'report.html'}" in flat


def test_killed_and_resumed_it_ends_the_same(whole: Path, tmp_path: Path) -> None:
    """kill -9 of the parent: its processes stop by themselves, and --resume finishes the work."""
    arguments = ["reproduce", *SMALL, "--seeds", "1", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlmcgrad", *arguments], stdout=subprocess.DEVNULL
    )
    metrics = tmp_path / "runs" / "amsgrad-mlmc-1" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "summary.json").exists()
    _until_nobody_trains(tmp_path)
    assert main([*arguments, "--jobs", "1", "--resume"]) == 0
    rows = [row for row in _findings(whole)["final"] if row["seed"] == 1]
    expected, found = ([{**row, "seconds": 0} for row in r] for r in (rows, _final(tmp_path)))
    assert found == expected
    for name in ("amsgrad-br-1", "amsgrad-mlmc-1"):
        assert _numbers(tmp_path / "runs" / name) == _numbers(whole / "runs" / name)


def _final(folder: Path) -> list[dict[str, Any]]:
    rows = _findings(folder)["final"]
    assert isinstance(rows, list)
    return rows


def _numbers(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what depends on the clock."""
    rows = records.read_lines(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


def _until_nobody_trains(folder: Path) -> None:
    """Wait until the orphaned processes have released their run folders."""
    import fcntl

    for lock in (folder / "runs").glob("*/lock"):
        with lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def test_a_folder_in_use_is_not_touched(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *SMALL, "--out", str(whole)]) == 2
    assert "already holds a run of reproduce; continue it with --resume" in capsys.readouterr().err
    assert (
        main(
            [
                "reproduce",
                *SMALL,
                "--iterations",
                "32",
                "--stretch",
                "1",
                "--out",
                str(whole),
                "--resume",
            ]
        )
        == 2
    )
    assert "evaluate_every must be 2 as" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"experiment": "scaling"}')
    assert main(["reproduce", *SMALL, "--out", str(tmp_path), "--resume"]) == 2
    assert "holds a run of scaling, as its config" in capsys.readouterr().err


def test_force_keeps_the_earlier_reproduction(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(whole, tmp_path / "copy")
    (copy / "notes.txt").write_text("mine")
    before = content(whole)
    with locked(copy):
        assert main(["reproduce", *SMALL, "--out", str(copy), "--force"]) == 2
    assert not (copy / "old-1").exists()
    monkeypatch.setattr(reproduce, "train_runs", lambda *arguments: {})
    assert main(["reproduce", *SMALL, "--out", str(copy), "--force"]) == 0
    assert content(copy / "old-1") == before
    assert (copy / "notes.txt").read_text() == "mine"
    assert not _findings(copy)["final"]


def test_a_failed_run_is_named_and_tried_again(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are trained; the next time only the failed one is, and its error is removed."""
    copy = shutil.copytree(whole, tmp_path / "copy")
    failing, missing, *others = sorted((copy / "runs").iterdir())
    config = (failing / "config.json").read_bytes()
    for folder in (failing, missing):
        shutil.rmtree(folder)
        folder.mkdir()
    (failing / "config.json").write_text('{"experiment": "scaling"}')
    (copy / "summary.json").unlink()
    times = {run: (run / "summary.json").stat().st_mtime_ns for run in others}
    arguments = ["reproduce", *SMALL, "--jobs", "1", "--out", str(copy), "--resume"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert f"1 of 4 runs failed ({failing.name}), the first because: out: " in said
    assert "holds a run of scaling" in said
    assert "holds a run of scaling" in (copy / "report.html").read_text()
    assert "holds a run of scaling" in records.read_json(failing / "error.json")["error"]
    assert [name for name, _ in _findings(copy)["failed"]] == [failing.name]
    assert _numbers(missing) == _numbers(whole / "runs" / missing.name)
    (failing / "config.json").write_bytes(config)
    assert main(arguments) == 0
    assert not (failing / "error.json").exists()
    assert _numbers(failing) == _numbers(whole / "runs" / failing.name)
    assert not _findings(copy)["failed"]
    for run, before in times.items():
        assert (run / "summary.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM][: times(1, 2)])
def test_a_signal_saves_every_run(tmp_path: Path, number: int) -> None:
    small: dict[str, Any] = {"batch_size": 10, "nll_samples": 5, "test_images": 5, "log_every": 2}
    last = 200_000
    runs = {
        name: Config.from_flat(
            out=tmp_path / name, iterations=last, resume=True, **small
        ).settings()
        for name in "ab"
    }

    def stop() -> None:
        metrics = tmp_path / "a" / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(
        Stopped, match="everything finished is saved; continue with the same command and --resume"
    ):
        reproduce.train_runs(runs, decide(Reproduce(jobs=2)), Console(quiet=True))
    thread.join()
    assert not multiprocessing.active_children()
    assert not any(reproduce.complete(config) for config in runs.values())
    name = max((tmp_path / "a" / "checkpoints").glob("*.pt"))
    reached = int(name.stem.split("-")[1])
    rows = records.read_lines(tmp_path / "a" / "metrics.jsonl")
    assert rows[-1]["iteration"] <= reached < last
    assert not (tmp_path / "a" / "error.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "meta"], "device must be cpu"),
        (["--seeds", str(10**23)], "seeds must be an integer from 1 to 1000, got 1000"),
        (["--jobs", "1025"], "jobs must be an integer from 1 to 1024, got 1025"),
        (["--iterations", str(2**64)], "iterations must be an integer from 16 to 2147483648"),
        (["--stretch", "0"], "stretch must be an integer from 1 to 1048576, got 0"),
    ],
)
def test_what_no_run_can_do_is_refused_before_any_begins(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "--preset", "smoke", *options, "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"mlmcgrad: {message}")
    assert not out.exists()
