"""Jobs through submitit: its local executor runs the same jobs as Slurm would."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.cli import commands, main, slurm
from mlmcgrad.experiments.boltzmann.settings import Boltzmann
from mlmcgrad.experiments.reproduce.settings import Reproduce
from mlmcgrad.experiments.scaling.settings import Scaling
from mlmcgrad.runs.signals import Stopped
from tests.faults.commands import numbers

LOCAL, OPTIONS = ("--slurm-cluster", "local"), ("--slurm-options",)
RATES = ("rates", "--preset", "smoke", "--jobs", "1")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.1)


def _preempt(folder: Path) -> None:
    """Send the signal of a preemption to the first process that has a job."""
    limit = time.monotonic() + 120.0
    while time.monotonic() < limit:
        for path in (folder / "taken").glob("[a-z]*.1"):
            header, _, count = path.read_text().partition("\n")
            if count.strip() == "0":
                os.kill(json.loads(header)["pid"], signal.SIGUSR2)
                return
        time.sleep(0.001)


def test_jobs_do_the_work_and_one_that_is_preempted_is_queued_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    thread = threading.Thread(target=_preempt, args=(folder,))
    thread.start()
    assert main([*RATES, "--slurm", "2", *LOCAL, "--out", str(folder)]) == 0
    thread.join()
    printed = capsys.readouterr().out
    assert printed.startswith("2 jobs submitted: ")
    assert f"output of the jobs: {folder / 'slurm'}" in printed
    assert "jobs: 2 finished" in printed
    assert f"figure: {folder / 'rates.png'}" in printed
    logs = "".join(path.read_text() for path in (folder / "slurm").glob("*_log.*"))
    assert logs.count("Requeued job") == 1
    assert logs.count("Job completed successfully") == 2
    assert main([*RATES, "--out", str(tmp_path / "alone")]) == 0
    assert numbers(folder) == numbers(tmp_path / "alone")


def test_jobs_that_all_fail_are_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"experiment": "bound"}')
    assert main([*RATES, "--slurm", "1", *LOCAL, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert f"failed: mlmcgrad: out: {tmp_path} holds a run of bound" in said.out
    assert said.err == (
        f"mlmcgrad: slurm: all 1 jobs failed; their output is in {tmp_path / 'slurm'}\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--slurm", "2"), "slurm: Could not detect .* or try .* --slurm-cluster local"),
        (("--slurm", "1001"), "slurm must be an integer from 0 to 1000, got 1001"),
        ((*LOCAL,), "slurm must be ≥ 1 for slurm_options and slurm_cluster, got 0"),
        (
            ("--slurm", "2", "--slurm-options", "time"),
            "slurm_options must be NAME=VALUE, got 'time'",
        ),
        (("--slurm", "2", *OPTIONS, "time=soon"), "slurm_options: time must be a number of"),
        (("--slurm", "2", *LOCAL, *OPTIONS, "colour=red"), "slurm_options: .*colour"),
    ],
)
def test_what_cannot_be_submitted_is_refused(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "nowhere")
    assert main([*RATES, *options, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(f"mlmcgrad: {message}.*\n", said)


def test_without_submitit_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main([*RATES, "--slurm", "2", "--out", str(tmp_path)]) == 2
    assert "pip install 'mlmcgrad[slurm]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("scaling", Scaling(join=True)),
        ("boltzmann", Boltzmann(seed=3, jobs=5, resume=True, data=("digits",), join=True)),
        ("reproduce", Reproduce(preset="full", methods=("br", "mlmc"), seeds=2, device="cpu")),
    ],
)
def test_a_job_has_the_settings_of_the_command(name: str, settings: Any) -> None:
    found, _ = commands._parse([name, *slurm.words(settings)])
    assert found == settings


def _jobs(*ids: str) -> Iterator[Any]:
    for each in ids:
        yield SimpleNamespace(job_id=each, state="RUNNING", done=lambda: False)


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("slurm", r"watch them with squeue -j 17, stop them with scancel 17;"),
        ("local", r"watch them with ps 17, stop them with kill 17;"),
    ],
)
def test_ctrl_c_leaves_the_jobs_running_and_says_how_to_watch_them(
    cluster: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(jobs: Any, console: Any) -> None:
        raise Stopped(signal.SIGINT, "stopped")

    monkeypatch.setattr(slurm, "_submit", lambda *_: list(_jobs("17_0", "17_1")))
    monkeypatch.setattr(slurm, "_wait", stop)
    settings = Scaling(slurm=2, slurm_cluster=cluster)
    with pytest.raises(Stopped, match=f"SIGINT: the jobs go on; {said} .* --join") as stopped:
        slurm.follow("scaling", settings, Console(quiet=True))
    assert stopped.value.code == 130


def test_a_job_that_is_asked_to_stop_waits_until_it_is_queued_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(slurm, "time", SimpleNamespace(sleep=slept.append))
    cases = (("slurm", 0, 0), ("slurm", 2, 0), ("slurm", 143, 1), ("local", 143, 0))
    for executor, code, waits in cases:
        slept.clear()
        monkeypatch.setenv("SUBMITIT_EXECUTOR", executor)
        monkeypatch.setattr(slurm, "main", lambda arguments, code=code: code)
        task = slurm.Task(("scaling", "--join"))
        if code:
            with pytest.raises(RuntimeError, match=f"scaling --join: exit code {code}"):
                task()
        else:
            task()
        assert len(slept) == waits
    assert task.checkpoint().function == task
