"""The command, ended at random moments and resumed, leaves what one leaves that nothing disturbed.

Moments are spread over the whole duration of an undisturbed run, imports included. A run that ends
before its moment has come is compared, and the next one begins in an empty folder.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.paper.training import loop
from tests.faults import console, times
from tests.paper.training import tiny

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

TRAIN = "train --iterations 60 --batch-size 20 --nll-samples 20 --test-images 20 --evaluate-every 7"
TRAIN += " --log-every 4 --checkpoint-every 3 --probe-images 30 --probe-length 2 --probe-repeats 3"
COMMANDS = {
    "train-mlmc": f"{TRAIN} --method mlmc",
    "train-br": f"{TRAIN} --method br --truncation-scale 3",
    "train-iwae": f"{TRAIN} --method iwae",
    "scaling": "scaling --preset smoke --jobs 2",
    "boltzmann": "boltzmann --preset smoke --data bars --jobs 2",
    "rates": "rates --preset smoke --jobs 2",
    "reproduce": "reproduce --preset smoke --jobs 2 --seeds 1 --optimizer amsgrad",
}
WITH_WORKERS = ["scaling", "boltzmann", "rates", "reproduce"]
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
OUT = "run"


@pytest.mark.parametrize("name", list(COMMANDS))
@pytest.mark.skipif(times(0, 1) == 0, reason="takes minutes: make faults")
def test_killed(name: str, tmp_path: Path) -> None:
    trial = Trial(name, tmp_path)
    for _ in trial.moments(10):
        os.kill(trial.process.pid, signal.SIGKILL)
        trial.ends(-signal.SIGKILL)
    trial.compare()


@pytest.mark.parametrize("name", WITH_WORKERS)
@pytest.mark.skipif(times(0, 1) == 0, reason="takes minutes: make faults")
def test_a_worker_is_killed(name: str, tmp_path: Path) -> None:
    trial = Trial(name, tmp_path)
    killed = 0
    while killed < 5:
        if trial.reaches(trial.random.random()) and (pids := console.workers(trial.process)):
            killed += 1
            os.kill(trial.random.choice(sorted(pids)), signal.SIGKILL)
            # It is named at the end; or it had nothing to do any more.
            trial.ends(2, 0)
        elif trial.process.poll() is None:
            os.kill(trial.process.pid, signal.SIGKILL)
            trial.ends(-signal.SIGKILL)
    trial.compare()


@pytest.mark.parametrize("name", list(COMMANDS))
@pytest.mark.skipif(times(0, 1) == 0, reason="takes minutes: make faults")
def test_asked_to_stop(name: str, tmp_path: Path) -> None:
    trial = Trial(name, tmp_path)
    for number in trial.moments(9):
        request = REQUESTS[number % 3]
        # A terminal sends to the whole group, `kill` to one process.
        (os.killpg if number % 2 else os.kill)(trial.process.pid, request)
        # Before the first line of the command has run, Python ends as it always does.
        errors = trial.ends(128 + request, -request, 0)
        assert "Traceback" not in errors or "in main" not in errors, errors
    trial.compare()


class Trial:
    """A command in an empty folder, and one beside it that nothing disturbs."""

    def __init__(self, name: str, folder: Path) -> None:
        self.arguments = [*COMMANDS[name].split(), "--resume", "--out", OUT]
        self.random = random.Random(name)
        self.undisturbed, self.disturbed = folder / "undisturbed", folder / "disturbed"
        begin = time.monotonic()
        self.process = console.start(self.arguments, self.undisturbed)
        self.ends(0)
        self.seconds = time.monotonic() - begin

    def moments(self, count: int) -> Iterator[int]:
        """The command runs at so many random moments, one in each of as many parts of the time."""
        part = met = 0
        while met < count:
            if self.reaches((part % count + self.random.random()) / count):
                yield met
                met += 1
            part += 1

    def reaches(self, share: float) -> bool:
        """Start or resume the command; False if it ends before this share of the time is over."""
        self.process = console.start(self.arguments, self.disturbed)
        try:
            self.process.wait(share * self.seconds)
        except subprocess.TimeoutExpired:
            return True
        self.ends(0)
        self.compare()
        shutil.rmtree(self.disturbed)
        return False

    def ends(self, *codes: int) -> str:
        """Wait for the end of the command and of its workers; what it said."""
        _, errors = self.process.communicate(timeout=600.0)
        assert self.process.returncode in codes, errors
        console.seconds_until_all_ended(self.process, 10.0)
        return errors

    def compare(self) -> None:
        """Let the command come to its end: all numbers have the same bits."""
        self.process = console.start(self.arguments, self.disturbed)
        self.ends(0)
        expected, found = _remains(self.undisturbed / OUT), _remains(self.disturbed / OUT)
        assert expected.keys() == found.keys()
        assert [name for name in found if not tiny.same(expected[name], found[name])] == []


def _remains(folder: Path) -> dict[str, Any]:
    """Numbers and pictures without seconds; of figures and pages only that they are there."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = str(path.relative_to(folder)), None  # type: str, Any
        if path.name == "metrics.jsonl":
            content = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name == "summary.json":
            content = _timeless(json.loads(path.read_text()))
        elif path.name.startswith(("samples-", "reconstructions-")):
            content = path.read_bytes()
        elif path.suffix == ".pt":  # which older ones there are depends on when it was stopped
            continue
        found[name] = content
    for parent in sorted({path.parents[1] for path in folder.rglob("*.pt")}):
        found[f"{parent.relative_to(folder)}: state"] = _timeless(loop.latest_checkpoint(parent))
    return found


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        timed = ("seconds", "finished")
        return {name: _timeless(value) for name, value in content.items() if name not in timed}
    if isinstance(content, list):
        by_time = [isinstance(c, dict) and c.get("axis") == "seconds" for c in content]
        return [_timeless(c) for c, timed in zip(content, by_time, strict=True) if not timed]
    return content
