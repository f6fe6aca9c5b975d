"""Jobs in processes: results by name, saved one by one; errors, deaths and signals."""

import io
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.paper.runs.pool import Report, forget, run_jobs, run_parts
from mlmcgrad.paper.runs.process import Signals, Stopped
from tests.faults import times

QUIET = Console(quiet=True)


def square(report: Report, x: int) -> dict[str, Any]:
    report(0.5)
    if x < 0:
        raise ValueError(f"x must not be negative, got {x}")
    memory = [os.environ.get(f"MALLOC_{name}_THRESHOLD_") for name in ("TRIM", "MMAP")]
    torch = sys.modules.get("torch")  # slow to import: workers go by the variable
    threads = torch.get_num_threads() if torch else int(os.environ["OMP_NUM_THREADS"])
    return {"square": x * x, "threads": threads, "memory": memory}


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_back_in_order_with_one_thread_each(
    tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers keep their memory, unless the user has chosen something else."""
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "12345")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = dict(os.environ)
    arguments = {f"p{x}": {"x": x} for x in (3, 1, 2)}
    results = run_parts(square, arguments, tmp_path, QUIET, jobs=jobs)
    assert dict(os.environ) == before
    memory = [None if jobs == 1 else "1000000000", "12345"]
    for x in (3, 1, 2):
        assert results[f"p{x}"] == {"square": x * x, "threads": 1, "memory": memory}
    assert list(results) == ["p3", "p1", "p2"]
    assert len(list(tmp_path.glob("parts/*.json"))) == 3
    own = tmp_path / "parts" / "of the user.json"
    own.write_text("kept")
    forget(tmp_path, results)
    assert list(tmp_path.rglob("*")) == [own.parent, own]
    own.unlink()
    forget(tmp_path, results)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_part_that_fails_is_named_and_the_finished_ones_are_kept(
    tmp_path: Path, jobs: int
) -> None:
    arguments = {"good": {"x": 2}, "bad": {"x": -1}}
    with pytest.raises(ValueError, match="x must not be negative, got -1") as error:
        run_parts(square, arguments, tmp_path, QUIET, jobs=jobs)
    assert not multiprocessing.active_children()
    if jobs == 1:
        assert [p.name for p in tmp_path.glob("parts/*.json")] == ["good.json"]
    else:  # where it happened is not lost on the way
        assert "in square" in error.value.__notes__[0]


def test_a_result_belongs_to_its_arguments(tmp_path: Path) -> None:
    run_parts(square, {"p": {"x": 2}}, tmp_path, QUIET, jobs=1)
    assert run_parts(square, {"p": {"x": 3}}, tmp_path, QUIET, jobs=1)["p"]["square"] == 9


def test_finished_parts_are_not_computed_again(tmp_path: Path) -> None:
    run_parts(square, {"p": {"x": 2}}, tmp_path, QUIET, jobs=1)
    saved = (tmp_path / "parts" / "p.json").stat().st_mtime_ns
    run_parts(square, {"p": {"x": 2}, "q": {"x": 3}}, tmp_path, QUIET, jobs=1)
    assert (tmp_path / "parts" / "p.json").stat().st_mtime_ns == saved


def test_where_there_is_no_terminal_every_job_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_parts(square, {"p": {"x": 2}, "q": {"x": 3}}, tmp_path, Console(), jobs=1)
    assert capsys.readouterr().out == "p: done\nq: done\n"


def half(report: Report, name: str) -> None:
    report(0.5, f"{name} at one half, θ = 1")
    time.sleep(1.0)  # several times as long as the bars take to notice it


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_terminal_has_a_bar_for_each_running_job(jobs: int) -> None:
    terminal = Console(force_terminal=True, width=100, file=io.StringIO())
    arguments = {name: {"name": name} for name in ("apples", "pears")}
    assert len(list(run_jobs(half, arguments, terminal, jobs=jobs))) == 2
    text = terminal.file.getvalue()  # type: ignore[attr-defined]
    for name in arguments:
        assert f"{name} at one half, θ = 1" in text
    assert "0/2 done" in text
    assert "done\n" not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.split("left")[-1])


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
        run_parts(interrupt, arguments, tmp_path, QUIET, jobs=1)
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
    if kind == "file":
        raise FileNotFoundError(2, "No such file", "apples")
    if kind == "strange":
        raise TwoArgumentsError(3, "apples")
    if kind == "silent":
        raise KeyError
    return kind


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_job_that_fails_does_not_take_the_others_down(jobs: int) -> None:
    kinds = ("fine", "strange", "silent", "file", "good")
    arguments = {kind: {"kind": kind} for kind in kinds}
    ended = {job.name: job for job in run_jobs(fail, arguments, QUIET, jobs=jobs)}
    assert {name: job.result for name, job in ended.items() if job.error is None} == {
        "fine": "fine",
        "good": "good",
    }
    assert ended["strange"].reason == ("apples 3" if jobs == 1 else "TwoArgumentsError: apples 3")
    assert ended["silent"].reason == "KeyError"
    assert ended["file"].reason == "[Errno 2] No such file: 'apples'"
    assert not multiprocessing.active_children()


def save_or_die(report: Report, folder: str, name: str) -> None:
    """One job is killed when the other is at work; the other saves its state."""
    if name == "dies":
        while not list(Path(folder).iterdir()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_a_signal(report, folder)


@pytest.mark.timeout(120)
def test_a_killed_process_ends_the_command_and_the_others_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the pool begins to watch its processes before the last one is started."""
    start = ProcessPoolExecutor._adjust_process_count

    def slowly(pool: ProcessPoolExecutor) -> None:
        time.sleep(0.3)
        start(pool)

    monkeypatch.setattr(ProcessPoolExecutor, "_adjust_process_count", slowly)
    arguments = {name: {"folder": str(tmp_path), "name": name} for name in ("works", "dies")}
    with pytest.raises(
        ChildProcessError, match=r"^a worker process was killed.*is saved; continue .*--resume$"
    ):
        list(run_jobs(save_or_die, arguments, QUIET, jobs=2))
    assert not multiprocessing.active_children()
    assert len(list(tmp_path.glob("*.saved"))) == 1


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM][: times(1, 2)])
def test_a_signal_lets_every_job_save(tmp_path: Path, number: int) -> None:
    arguments = {name: {"folder": str(tmp_path)} for name in "abc"}
    thread = _when(lambda: len(list(tmp_path.iterdir())) == 2, lambda: os.kill(os.getpid(), number))
    with pytest.raises(
        Stopped, match=r"everything finished is saved; continue .*--resume"
    ) as stopped:
        list(run_jobs(wait_for_a_signal, arguments, QUIET, jobs=2))
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
from mlmcgrad.paper.runs.pool import run_jobs
from tests.paper.runs.test_pool import hear_nothing
if __name__ == "__main__":
    arguments = {name: {"folder": sys.argv[1]} for name in "ab"}
    list(run_jobs(hear_nothing, arguments, Console(quiet=True), jobs=2))
"""


def _start(program: str, folder: Path) -> subprocess.Popen[str]:
    """A program in a session of its own; workers can import from these tests."""
    script = folder / "program.py"
    script.write_text(program)
    root = Path(__file__).parents[3]
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
    assert "Traceback" not in errors
    assert not _lives(workers[0])


STARTING = """
import os, signal, sys
from pathlib import Path
from rich.console import Console
from mlmcgrad.paper.runs import pool
from mlmcgrad.paper.runs.process import Stopped
from tests.paper.runs.test_pool import wait_for_a_signal
if __name__ == "__main__":
    wait = pool.wait
    def interrupted(*arguments):
        os.killpg(0, signal.SIGINT)  # Ctrl-C in a terminal, while the workers are starting
        return wait(*arguments)
    pool.wait = interrupted
    arguments = {name: {"folder": sys.argv[1]} for name in "ab"}
    try:
        list(pool.run_jobs(wait_for_a_signal, arguments, Console(quiet=True), jobs=2))
    except Stopped as stopped:
        sys.exit(stopped.code)
"""


def test_ctrl_c_while_workers_are_starting(tmp_path: Path) -> None:
    parent = _start(STARTING, tmp_path)
    _, errors = parent.communicate(timeout=60.0)
    assert errors == ""
    assert parent.returncode == 130


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # An orphan that nobody has waited for yet is dead all the same.
    status = Path(f"/proc/{process}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")
