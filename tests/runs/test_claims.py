"""Claims: one process has a job, and exactly one succeeds it when it has died."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlmcgrad.runs import claims
from mlmcgrad.runs.claims import DEAD_SECONDS, Claim, LostError, Watch, take, turn

KILLED = """
import os, signal, sys
from pathlib import Path
from mlmcgrad.runs.claims import Watch, take
claim = take(Watch(Path(sys.argv[1])).look("job").path)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _take(folder: Path, name: str = "job") -> Claim:
    claim = take(Watch(folder).look(name).path)
    assert claim is not None
    return claim


def _rewrite(path: Path, **changes: Any) -> None:
    """Change what a claim says of its process."""
    header, _, count = path.read_text().partition("\n")
    path.write_text(json.dumps({**json.loads(header), **changes}) + "\n" + count)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test moves."""
    now = SimpleNamespace(seconds=100.0)
    stopped = SimpleNamespace(monotonic=lambda: now.seconds, sleep=time.sleep)
    monkeypatch.setattr(claims, "time", stopped)
    return now


def test_a_job_is_free_held_and_free_again(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    assert watch.look("job") == (True, "", tmp_path / "taken" / "job.1")
    with _take(tmp_path) as claim:
        free, host, path = watch.look("job")
        assert (free, path) == (False, tmp_path / "taken" / "job.2")
        assert host
        assert watch.look("alpha=0.25").free
        claim.check()
    assert watch.look("job") == (True, host, tmp_path / "taken" / "job.2")


def test_a_killed_process_has_nothing_any_more(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert Watch(tmp_path).look("job").free
    with _take(tmp_path):
        assert not Watch(tmp_path).look("job").free


def test_a_process_that_nobody_has_waited_for_is_dead(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        os.kill(process.pid, 0)  # its number is still there
        assert Watch(tmp_path).look("job").free


def test_another_process_with_the_same_number_is_another_process(tmp_path: Path) -> None:
    with _take(tmp_path):
        assert not Watch(tmp_path).look("job").free
        _rewrite(tmp_path / "taken" / "job.1", start=1)
        assert Watch(tmp_path).look("job").free


def test_a_process_elsewhere_is_dead_when_its_count_stands_still(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    """By the clock of the one who looks: the time of the file does not matter."""
    with _take(tmp_path):
        path = tmp_path / "taken" / "job.1"
        _rewrite(path, machine="another", pid=1)
        os.utime(path, (0, 0))
        watch = Watch(tmp_path)
        for count in range(5):
            path.write_text(path.read_text().split("\n")[0] + f"\n{count:>12}\n")
            assert not watch.look("job").free
            clock.seconds += 0.9 * DEAD_SECONDS
            assert not watch.look("job").free
        clock.seconds += 0.2 * DEAD_SECONDS
        assert watch.look("job").free
        assert not Watch(tmp_path).look("job").free  # who has only just come cannot know


def test_a_process_that_was_killed_before_it_wrote_who_it_is(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "job.1").touch()
    watch = Watch(tmp_path)
    assert watch.look("job")[:2] == (False, "an unknown host")
    clock.seconds += DEAD_SECONDS
    assert watch.look("job").free


def test_a_process_counts_while_it_has_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.01)
    path = tmp_path / "taken" / "job.1"
    with _take(tmp_path):
        first = path.read_bytes()
        limit = time.monotonic() + 30.0
        while path.read_bytes() == first:
            assert time.monotonic() < limit
        assert len(path.read_bytes()) == len(first)
    assert path.read_text().split()[-1] == "free"
    assert not [thread for thread in threading.enumerate() if "(_beat)" in thread.name]


def test_a_paused_process_finds_its_successor_and_does_not_disturb_it(tmp_path: Path) -> None:
    with _take(tmp_path) as paused:
        paused.check()
        _rewrite(tmp_path / "taken" / "job.1", start=1)  # as if it were dead
        successor = _take(tmp_path)
        with pytest.raises(LostError, match=r"job.2 is of another process"):
            paused.check()
        successor.check()
    with successor:
        assert not Watch(tmp_path).look("job").free  # although the first one has let go
        successor.check()


def careless(path: Path) -> Claim | None:
    """The planted bug: look whether the file is there, and then write it."""
    gone = not path.exists()
    time.sleep(0.01)
    return Claim(path, os.open(path, os.O_RDWR | os.O_CREAT)) if gone else None


def _winners(folder: Path, how: Callable[[Path], Claim | None], count: int = 24) -> int:
    """How many of many threads succeed the same dead process, all of them ready to."""
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    barrier, won = threading.Barrier(count), []

    def race() -> None:
        sight = Watch(folder).look("job")
        assert sight.free
        barrier.wait()
        if (claim := how(sight.path)) is not None:
            won.append(claim)

    threads = [threading.Thread(target=race) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for claim in won:
        claim.__exit__()
    return len(won)


def test_exactly_one_succeeds_a_dead_process(tmp_path: Path) -> None:
    assert [_winners(tmp_path / str(i), take) for i in range(5)] == [1] * 5
    assert _winners(tmp_path / "careless", careless) > 1


def test_who_was_too_slow_takes_nothing_from_anybody(tmp_path: Path) -> None:
    """It saw a dead process; before it acts, another succeeds that one, ends, and a third comes."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    slow = Watch(tmp_path).look("job")
    assert slow.free
    with _take(tmp_path):
        pass
    with _take(tmp_path) as third:
        assert take(slow.path) is None
        third.check()


def test_turns_are_taken_one_after_another(tmp_path: Path) -> None:
    inside, most = 0, 0

    def enter() -> None:
        nonlocal inside, most
        with turn(tmp_path, ".summary") as claim:
            inside += 1
            most = max(most, inside)
            claim.check()
            inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, len(list((tmp_path / "taken").iterdir()))) == (1, 4)
