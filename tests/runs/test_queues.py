"""Jobs that several processes share: each is done once, and one that was overtaken stops."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.runs import jobs, pool, queues
from mlmcgrad.runs.claims import Watch, take
from mlmcgrad.runs.pool import Report, run_parts, share_parts
from mlmcgrad.runs.queues import Alone, Shared, Taken, claimed
from mlmcgrad.runs.signals import Stopped

QUIET = Console(quiet=True)
ARGUMENTS = {f"p{x}": {"x": x} for x in range(6)}


def square(report: Report, x: int) -> int:
    report(0.5)
    return x * x


def note(report: Report, x: int, folder: str) -> int:
    """Leaves a file for each time that it is called."""
    with (Path(folder) / f"calls-{x}").open("a") as file:
        file.write("called\n")
    return square(report, x)


def test_alone_gives_every_job_in_order() -> None:
    queue = Alone(square, ARGUMENTS)
    names = []
    while (job := queue.next()) is not None:
        assert job[1:] == (square, ARGUMENTS[job.name])
        names.append(job.name)
    assert names == list(ARGUMENTS)
    assert (queue.left(), queue.ended(), queue.hosts()) == (False, (), ())


def test_shared_gives_what_nobody_has_and_waits_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_LOOK_SECONDS", 0.0)
    done = {"p1"}
    held = take(Watch(tmp_path).look("p2").path)
    assert held is not None
    some = {name: ARGUMENTS[name] for name in ("p1", "p2", "p3")}
    queue = Shared(square, some, tmp_path, done.__contains__)
    with held:
        job = queue.next()
        assert job is not None
        assert job.name == "p3"
        assert queue.next() is None
        assert (queue.left(), len(queue.hosts())) == (True, 1)
        assert (queue.ended(), queue.ended()) == (["p1"], [])
    queue.back("p3")  # another was quicker
    free = [job.name for job in iter(queue.next, None)]
    assert (free, queue.left()) == (["p2", "p3"], False)


def test_a_job_of_another_process_is_not_done(tmp_path: Path) -> None:
    path = Watch(tmp_path).look("job").path
    call: dict[str, Any] = {"claim": path, "function": square, "arguments": {"x": 3}}
    assert claimed(lambda share: None, **call) == 9
    assert isinstance(claimed(lambda share: None, **call), Taken)


def overtaken(report: Report, x: int, claim: str, path: str) -> None:
    """Is paused after its first report, and taken for dead; then it goes on."""
    report(0.1)
    Path(claim).touch()
    report(0.2)
    Path(path).touch()


def test_a_job_that_was_overtaken_stops_at_its_next_report(tmp_path: Path) -> None:
    path = Watch(tmp_path).look("job").path
    more = {"claim": str(path.with_name("job.2")), "path": str(tmp_path / "went on")}
    shares: list[float] = []
    result = claimed(shares.append, claim=path, function=overtaken, arguments={"x": 1, **more})
    assert isinstance(result, Taken)
    assert shares == [0.1]
    assert not (tmp_path / "went on").exists()
    # The planted bug: with a report that does not look, it goes on.
    overtaken(shares.append, 1, **more)
    assert (tmp_path / "went on").exists()


def test_two_who_share_parts_compute_each_once(tmp_path: Path) -> None:
    arguments = {name: {**values, "folder": str(tmp_path)} for name, values in ARGUMENTS.items()}

    def work() -> None:
        share_parts(note, arguments, tmp_path, 1, QUIET)

    other = threading.Thread(target=work)
    other.start()
    work()
    other.join()
    calls = {path.name: path.read_text() for path in tmp_path.glob("calls-*")}
    assert calls == {f"calls-{x}": "called\n" for x in range(6)}
    # All are saved: nothing is computed again.
    results = run_parts(note, arguments, tmp_path, 1, QUIET)
    assert results == {f"p{x}": x * x for x in range(6)}
    assert {path.name: path.read_text() for path in tmp_path.glob("calls-*")} == calls


def test_a_part_that_fails_is_raised_and_free_for_others(tmp_path: Path) -> None:
    def fail(report: Report, x: int) -> int:
        raise ValueError(f"x must not be {x}")

    for _ in range(2):
        with pytest.raises(ValueError, match="x must not be 0"):
            share_parts(fail, ARGUMENTS, tmp_path, 1, QUIET)
    assert sorted(path.name for path in (tmp_path / "taken").iterdir()) == ["p0.1", "p0.2"]


class Listening(Console):
    """Knows when it has printed that something is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **options)
        if str(objects[0]).startswith("waiting"):
            self.waiting.set()


def test_what_is_waited_for_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = Listening()
    held = take(Watch(tmp_path).look("p0").path)
    assert held is not None

    def finish() -> None:
        with held:
            console.waiting.wait()
            pool._save(tmp_path, "p0", square, {"x": 0}, 0)

    thread = threading.Thread(target=finish)
    thread.start()
    share_parts(square, {"p0": {"x": 0}, "p1": {"x": 1}}, tmp_path, 1, console)
    thread.join()
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "p1: done"
    assert second.startswith("waiting for 1 that run on ")
    assert third == "p0: done by another process"


def test_a_signal_ends_the_waiting(tmp_path: Path) -> None:
    console = Listening()
    held = take(Watch(tmp_path).look("p0").path)
    assert held is not None

    def stop() -> None:
        console.waiting.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with held, pytest.raises(Stopped, match="everything finished is saved") as stopped:
        share_parts(square, {"p0": {"x": 0}}, tmp_path, 1, console)
    thread.join()
    assert stopped.value.code == 128 + signal.SIGTERM


def test_a_job_that_comes_back_while_all_stop_is_not_waited_for(tmp_path: Path) -> None:
    crew = jobs._Pool(Shared(square, ARGUMENTS, tmp_path, lambda name: False), 1)
    crew.stop()
    assert not crew.assign()
    crew.queue.back("p0")  # its worker found that another process has it
    crew.stop()
    assert not crew.assign()
