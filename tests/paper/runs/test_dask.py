"""Jobs on a Dask cluster: the same results, also if a worker is killed in the middle of one."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.paper.runs.pool import Report, run_jobs, run_parts
from mlmcgrad.paper.training.loop import train
from tests.paper.training import tiny

ITERATIONS = 40


def work(report: Report, kind: str, folder: str) -> Any:
    """Train; the worker of one run kills itself once, in the middle of it."""
    path = Path(folder)
    if kind == "fails":
        raise ValueError("x must be positive")
    if kind == "double":
        return 2.0
    if kind == "again":  # a file that cannot be read for a moment
        (path / "again" / str(time.monotonic_ns())).mkdir(parents=True)
        if len(list((path / "again").iterdir())) == 1:
            raise OSError("stale file handle")
        return "read"
    mark = path / f"{kind} was killed"

    def watched(share: float, text: str) -> None:
        report(share, text)
        if kind == "killed" and share > 0.5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    config = tiny.config(path / kind, resume=True, iterations=ITERATIONS)
    return train(config, report=watched, _source=tiny.source()).summary["iteration"]


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_is_killed_costs_no_bits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.run(tmp_path / "whole", iterations=ITERATIONS)
    kinds = ("killed", "other", "fails", "again")
    arguments = {kind: {"kind": kind, "folder": str(tmp_path)} for kind in kinds}
    ended = list(run_jobs(work, arguments, Console(), jobs=1, dask="local:2"))
    results = {job.name: job.result if job.error is None else job.reason for job in ended}
    assert results == {
        "killed": ITERATIONS,
        "other": ITERATIONS,
        "fails": "x must be positive",
        "again": "read",
    }
    assert (tmp_path / "killed was killed").exists()
    for name in ("killed", "other"):
        assert tiny.same(tiny.remains(tmp_path / name), tiny.remains(tmp_path / "whole"))
    assert "Dask dashboard: http://" in capfd.readouterr().out


def test_nothing_is_started_for_nothing(tmp_path: Path) -> None:
    assert run_parts(work, {}, tmp_path, Console(quiet=True), jobs=1, dask="nowhere:1") == {}


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    command = ["scaling", "--preset", "smoke", "--dask", "local:1", "--out", str(tmp_path)]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "needs the package distributed; pip install 'mlmcgrad[cluster]'" in said
