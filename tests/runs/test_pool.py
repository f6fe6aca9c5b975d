"""Jobs in processes: results by name, saved one by one; errors, deaths and signals."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from mlmcgrad.runs.pool import Ended, Report, forget, run_jobs, run_parts
from mlmcgrad.runs.signals import Signals, Stopped

QUIET = Console(quiet=True)


def square(report: Report, x: int) -> dict[str, Any]:
    report(0.5)
    if x < 0:
        raise ValueError(f"x must not be negative, got {x}")
    return {"square": x * x, "threads": torch.get_num_threads()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_back_in_order_with_one_thread_each(tmp_path: Path, jobs: int) -> None:
    results = run_parts(square, {f"p{x}": {"x": x} for x in (3, 1, 2)}, tmp_path, jobs, QUIET)
    assert results == {f"p{x}": {"square": x * x, "threads": 1} for x in (3, 1, 2)}
    assert list(results) == ["p3", "p1", "p2"]
    assert len(list(tmp_path.glob("parts/*.json"))) == 3
    own = tmp_path / "parts" / "of the user.json"
    own.write_text("kept")
    forget(tmp_path, results)
    assert list(tmp_path.rglob("*")) == [own.parent, own]
    own.unlink()
    forget(tmp_path, results)
    assert not list(tmp_path.iterdir())


def memory(report: Report) -> dict[str, Any]:
    return {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}


def test_workers_keep_their_memory_and_the_user_s_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "12345")
    before = dict(os.environ)
    found = run_parts(memory, {"a": {}, "b": {}}, tmp_path, 2, QUIET)["a"]
    assert found["MALLOC_MMAP_THRESHOLD_"] == "12345"
    assert found["MALLOC_TRIM_THRESHOLD_"] == "1000000000"
    assert dict(os.environ) == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_part_that_fails_is_named_and_the_finished_ones_are_kept(
    tmp_path: Path, jobs: int
) -> None:
    arguments = {"good": {"x": 2}, "bad": {"x": -1}}
    with pytest.raises(ValueError, match="x must not be negative, got -1") as error:
        run_parts(square, arguments, tmp_path, jobs, QUIET)
    assert not multiprocessing.active_children()
    if jobs == 1:
        assert [p.name for p in tmp_path.glob("parts/*.json")] == ["good.json"]
    else:  # where it happened is not lost on the way
        assert "in square" in error.value.__notes__[0]


def test_a_result_belongs_to_its_arguments(tmp_path: Path) -> None:
    run_parts(square, {"p": {"x": 2}}, tmp_path, 1, QUIET)
    assert run_parts(square, {"p": {"x": 3}}, tmp_path, 1, QUIET)["p"]["square"] == 9


def test_finished_parts_are_not_computed_again(tmp_path: Path) -> None:
    run_parts(square, {"p": {"x": 2}}, tmp_path, 1, QUIET)
    saved = (tmp_path / "parts" / "p.json").stat().st_mtime_ns
    run_parts(square, {"p": {"x": 2}, "q": {"x": 3}}, tmp_path, 1, QUIET)
    assert (tmp_path / "parts" / "p.json").stat().st_mtime_ns == saved


def test_where_there_is_no_terminal_every_job_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_parts(square, {"p": {"x": 2}, "q": {"x": 3}}, tmp_path, 1, Console())
    assert capsys.readouterr().out == "p: done\nq: done\n"


def interrupt(report: Report, number: int, folder: str) -> None:
    signal.raise_signal(number)
    Path(folder, "went on").touch()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_this_process_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup
    arguments = {"p": {"number": number, "folder": str(tmp_path)}}
    with pytest.raises(
        Stopped, match=rf"^{number.name}: stopped, everything finished is saved; .*--resume"
    ) as stopped:
        run_parts(interrupt, arguments, tmp_path, 1, QUIET)
    signal.signal(signal.SIGHUP, before)
    assert stopped.value.code == 128 + number
    assert not list(tmp_path.iterdir())


class TwoArgumentsError(Exception):
    """Cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{text} {number}")


def fail(report: Report, kind: str) -> str:
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exits":
        sys.exit(7)
    if kind == "strange":
        raise TwoArgumentsError(3, "apples")
    if kind == "silent":
        raise KeyError
    return kind


def test_a_job_that_fails_does_not_take_the_others_down() -> None:
    kinds = ("dies", "fine", "exits", "strange", "silent", "good")
    reasons = {
        job.name: (job.result, job.reason, isinstance(job.error, ChildProcessError))
        for job in run_jobs(fail, {kind: {"kind": kind} for kind in kinds}, 1, QUIET)
    }
    killed = "its process ended with signal SIGKILL (the system does that when memory runs out)"
    assert reasons == {
        "dies": (None, killed, True),
        "fine": ("fine", None, False),
        "exits": (None, "its process ended with exit code 7", True),
        "strange": (None, "TwoArgumentsError: apples 3", False),
        "silent": (None, "KeyError", False),
        "good": ("good", None, False),
    }
    assert not multiprocessing.active_children()


def test_a_part_whose_process_was_killed_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jobs(*_: Any, **__: Any) -> Iterator[Ended]:
        yield Ended("p", error=ChildProcessError("its process ended with signal SIGKILL"))

    monkeypatch.setattr("mlmcgrad.runs.pool.run_jobs", jobs)
    with pytest.raises(
        ChildProcessError, match=r"^p: its process ended with .*; continue with .*--resume$"
    ):
        run_parts(square, {"p": {"x": 1}, "q": {"x": 2}}, tmp_path, 2, QUIET)


def wait_for_a_signal(report: Report, folder: str) -> None:
    """A job that saves its state when it is told to stop."""
    name = Path(folder) / str(os.getpid())
    with Signals() as signals:
        name.touch()
        while signals.number is None:
            report(0.5)
            time.sleep(0.01)
        name.with_suffix(".saved").touch()
        signals.raise_stopped("stopped")


def _when(holds: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    def wait() -> None:
        while not holds():
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_every_job_save(tmp_path: Path, number: int) -> None:
    arguments = {name: {"folder": str(tmp_path)} for name in "abc"}
    thread = _when(lambda: len(list(tmp_path.iterdir())) == 2, lambda: os.kill(os.getpid(), number))
    with pytest.raises(
        Stopped, match=r"everything finished is saved; continue .*--resume"
    ) as stopped:
        list(run_jobs(wait_for_a_signal, arguments, 2, QUIET))
    thread.join()
    assert stopped.value.code == 128 + number
    assert not multiprocessing.active_children()
    assert len(list(tmp_path.glob("*.saved"))) == 2  # the third one never started


def hear_nothing(report: Report, folder: str) -> None:
    """A job that neither reports nor reacts to signals."""
    (Path(folder) / str(os.getpid())).touch()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()


PARENT = """
import sys
from rich.console import Console
from mlmcgrad.runs.pool import run_jobs
from tests.runs.test_pool import hear_nothing
if __name__ == "__main__":
    list(run_jobs(hear_nothing, {"a": {"folder": sys.argv[1]}}, 1, Console(quiet=True)))
"""


def _start(program: str, folder: Path) -> subprocess.Popen[str]:
    """A program in a session of its own; workers can import from these tests."""
    script = folder / "program.py"
    script.write_text(program)
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    parent = _start(PARENT, tmp_path)
    while not (workers := [int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()]):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    # It ends when all that inherited the pipe have: the worker, and the tracker of resources.
    try:
        _, errors = parent.communicate(timeout=30.0)
    except subprocess.TimeoutExpired:
        os.kill(workers[0], signal.SIGKILL)
        raise
    assert errors == ""
    assert not _lives(workers[0])


STARTING = """
import os, signal, sys
from mlmcgrad.runs.signals import Signals
from mlmcgrad.runs.workers import Worker
if __name__ == "__main__":
    with Signals():
        worker = Worker()
        os.killpg(0, signal.SIGINT)  # Ctrl-C in a terminal
        worker.leave()
        sys.exit(worker.process.exitcode)
"""


def test_ctrl_c_does_not_reach_a_worker_that_is_starting(tmp_path: Path) -> None:
    parent = _start(STARTING, tmp_path)
    _, errors = parent.communicate(timeout=60.0)
    assert errors == ""
    assert parent.returncode == 0


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # An orphan that nobody has waited for yet is dead all the same.
    status = Path(f"/proc/{process}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")
