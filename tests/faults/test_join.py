"""Commands that share a folder by `--join`, one of them killed or paused at a random moment.

The other finishes everything, with the numbers of one that was alone.
"""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.experiments.reproduce.fleet import share_fleet
from mlmcgrad.runs import claims
from mlmcgrad.runs.lock import locked
from mlmcgrad.training.config import Config, Settings
from mlmcgrad.training.loop import train
from tests.faults import console, times
from tests.faults.commands import call, numbers, shortened
from tests.folders import content

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

COMMANDS = {
    "reproduce": "reproduce --preset smoke --optimizer amsgrad --seeds 1 --methods br mlmc",
    "scaling": "scaling --preset smoke",
    "boltzmann": "boltzmann --preset smoke --data bars",
    "rates": "rates --preset smoke",
}
FEW = list(COMMANDS)[: times(1, len(COMMANDS))]


def _seconds_to_the_end(process: "subprocess.Popen[str]") -> float:
    begin = time.monotonic()
    _, errors = process.communicate(timeout=600.0)
    assert process.returncode == 0, errors
    return time.monotonic() - begin


@pytest.mark.parametrize("name", FEW)
def test_one_of_two_is_killed(name: str, tmp_path: Path) -> None:
    """kill -9: once while it has a run, which is taken over; else at random moments."""
    words = COMMANDS[name].split()
    alone = console.start([*words, "--out", "alone"], tmp_path)
    limit = _seconds_to_the_end(alone)
    moments = random.Random(name)
    for trial in range(times(1, 10)):
        arguments = [*words, "--jobs", "1", "--join", "--out", f"trial-{trial}"]
        first, second = (console.start(arguments, tmp_path) for _ in range(2))
        taken = tmp_path / f"trial-{trial}" / "taken"
        if trial == 0:
            had = _until_it_has_a_run(first, taken)
        else:
            with suppress(subprocess.TimeoutExpired):
                first.wait(moments.random() * limit)
        first.kill()
        first.communicate()
        _seconds_to_the_end(second)
        console.seconds_until_all_ended(first, 10.0)
        assert numbers(taken.parent) == numbers(tmp_path / "alone")
        if trial == 0 and name == "reproduce":  # parts of the others may end before the kill
            assert (taken / f"{had}.2").exists()


def _until_it_has_a_run(process: "subprocess.Popen[str]", taken: Path) -> str:
    """Wait until a process has begun a run; its name."""
    while process.poll() is None:
        family = console.family(process)
        for path in taken.glob("[a-z]*.1"):
            header, _, count = path.read_text().partition("\n")
            if count.strip().isdecimal() and json.loads(header)["pid"] in family:
                return path.stem
    raise AssertionError("it never had one")


PAUSED = """
import pickle, sys
from pathlib import Path
from rich.console import Console
from mlmcgrad.experiments.reproduce.fleet import share_fleet
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    runs = pickle.loads((folder / "runs.pickle").read_bytes())
    sys.exit(len(share_fleet(runs, folder, 1, Console(quiet=True))))
"""


def _runs(folder: Path) -> dict[str, Settings]:
    small: dict[str, Any] = {"batch_size": 10, "nll_samples": 5, "test_images": 5}
    often: dict[str, Any] = {"log_every": 2, "checkpoint_every": 7, "evaluate_every": 60}
    config = Config(out=folder / "a", iterations=200, resume=True, **small, **often)
    return {"a": config.settings()}


def _lasting(folder: Path) -> dict[str, bytes]:
    """What a training leaves, without seconds, checkpoints (which have them) and claims."""
    found = content(folder / "a")
    kept = {k: v for k, v in found.items() if k.endswith(".png")}
    return {**kept, "numbers": repr(numbers(folder / "a")).encode()}


def test_a_paused_training_is_taken_over_and_does_no_harm_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another machine sees it, which cannot ask whether the process lives."""
    quiet = Console(quiet=True)
    train(_runs(tmp_path / "alone")["a"])
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "runs.pickle").write_bytes(pickle.dumps(_runs(folder)))
    script = folder / "paused.py"
    script.write_text(PAUSED)
    paused = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        text=True,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    metrics = folder / "a" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 30):
        assert paused.poll() is None
        time.sleep(0.001)
    stopped = console.family(paused)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert not (folder / "a" / "summary.json").exists()
    monkeypatch.setattr(claims, "_machine", lambda: "another machine")
    monkeypatch.setattr(claims, "DEAD_SECONDS", 1.0)
    assert share_fleet(_runs(folder), folder, 1, quiet) == {}
    assert _lasting(folder) == _lasting(tmp_path / "alone")
    before = content(folder / "a")
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    _, errors = paused.communicate(timeout=60.0)
    assert (paused.returncode, errors) == (0, "")
    assert content(folder / "a") == before
    assert {path.name for path in (folder / "taken").iterdir()} == {"a.1", "a.2"}


@pytest.fixture
def _shortened() -> Iterator[None]:
    with shortened():
        yield


@pytest.mark.usefixtures("_shortened")
@pytest.mark.parametrize("name", list(COMMANDS)[: times(2, 4)])
def test_join_and_other_commands_in_one_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder, shared=True):  # by somebody who shares it
        for more in ((), ("--resume",), ("--force",)):
            code, said = call(name, folder, *more)
            assert (code, said.count("\n")) == (2, 1)
            assert f"another process is using {folder}" in said
        assert call(name, folder, "--join") == (0, "")
    complete = numbers(folder)
    assert call(name, folder)[0] == 2  # as ever
    summary = (folder / "summary.json").read_bytes()
    assert call(name, folder, "--join") == (0, "")
    assert (folder / "summary.json").read_bytes() == summary
    other = ("--seeds", "2") if name == "reproduce" else ("--seed", "3")
    code, said = call(name, folder, "--join", *other)
    assert (code, said.count("\n")) == (2, 1)
    assert f"{other[0][2:]} must be" in said
    assert numbers(folder) == complete
    assert call(name, tmp_path / "alone") == (0, "")
    assert numbers(tmp_path / "alone") == complete


def test_a_folder_that_one_process_has_for_itself_cannot_be_joined(tmp_path: Path) -> None:
    with locked(tmp_path):
        code, said = call("scaling", tmp_path, "--join")
    assert code == 2
    assert f"another process is using {tmp_path}" in said
    assert main(["bound", "--preset", "smoke", "--out", str(tmp_path)]) == 0
