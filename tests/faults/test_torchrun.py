"""Processes of one training, killed one at a time: torchrun starts them again, and nothing is lost.

The run ends with the same bits as one that nothing disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlmcgrad.cli import main
from tests.faults import console, times
from tests.paper.training import tiny

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

ITERATIONS = times(24, 60)
TRAIN = f"train --iterations {ITERATIONS} --batch-size 20 --nll-samples 20 --test-images 20"
TRAIN += " --evaluate-every 9 --log-every 4 --checkpoint-every 3 --persistent --out run"
RANKS = 2
SECONDS = 120.0


def start(folder: Path, restarts: int, *options: str) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    launcher = f"-m torch.distributed.run --standalone --nproc-per-node={RANKS}".split()
    command = [*launcher, f"--max-restarts={restarts}", "-m", "mlmcgrad", *TRAIN.split(), *options]
    with console.hangups():
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            text=True,
            errors="replace",
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )


def ranks(process: subprocess.Popen[str]) -> list[int]:
    """The processes that train: children of torchrun, each in a session of its own."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == process.pid and state != "Z" and b"train" in command:
            found.append(int(path.name))
    return sorted(found)


def iteration(folder: Path) -> int:
    """The last iteration that has a line, or a checkpoint."""
    lines = folder / "run" / "metrics.jsonl"
    return len(lines.read_bytes().splitlines()) if lines.exists() else -1


def test_a_rank_is_killed(tmp_path: Path) -> None:
    kills = times(1, 5)
    disturbed = start(tmp_path / "disturbed", kills)
    # No digit depends on the number of processes: the other run is one of a single process.
    alone = [*TRAIN.split()[:-1], str(tmp_path / "undisturbed"), "--shards", str(RANKS)]
    assert main(alone) == 0
    moments, killed = random.Random(0), 0
    last = ITERATIONS // 4 + ITERATIONS // 9  # lines of a whole run
    end = time.monotonic() + SECONDS * (1 + kills)
    # A moment in each part of the run, known by its lines; imports and tests are among them.
    targets = sorted(moments.sample(range(-1, last - 2), kills))
    while killed < kills and disturbed.poll() is None and time.monotonic() < end:
        pids = ranks(disturbed)
        if len(pids) == RANKS and iteration(tmp_path / "disturbed") >= targets[killed]:
            time.sleep(moments.uniform(0.0, 0.3))
            os.kill(moments.choice(pids), signal.SIGKILL)
            _until_others_ended(pids)
            killed += 1
        time.sleep(0.01)
    _, said = disturbed.communicate(timeout=SECONDS)
    assert (killed, disturbed.returncode) == (kills, 0), said
    found, expected = (
        tiny.remains(tmp_path / "disturbed" / "run"),
        tiny.remains(tmp_path / "undisturbed"),
    )
    assert [name for name in expected if not tiny.same(found[name], expected[name])] == []


def _code(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=SECONDS)
    return process.returncode


def _until_others_ended(pids: list[int]) -> None:
    """The other ranks end within 30 seconds."""
    end = time.monotonic() + 30.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, "a rank outlives the other by 30 s"
        time.sleep(0.01)


@pytest.mark.skipif(times(0, 1) == 0, reason="takes long: make faults")
def test_torchrun_is_asked_to_stop(tmp_path: Path) -> None:
    """SIGTERM to torchrun: all ranks stop together, and the run goes on in one process."""
    process = start(tmp_path, 0)
    end = time.monotonic() + SECONDS
    while iteration(tmp_path) < 5 and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=SECONDS)
    assert "mlmcgrad: SIGTERM: stopped after iteration" in said, said
    assert "mlmcgrad: SIGTERM: rank 1 stopped after iteration" in said, said
    assert ranks(process) == []
    alone = console.start([*TRAIN.split(), "--resume"], tmp_path)
    _, said = alone.communicate(timeout=SECONDS)
    assert alone.returncode == 0, said
    whole = console.start([*TRAIN.split(), "--shards", str(RANKS)], tmp_path / "whole")
    assert _code(whole) == 0
    assert tiny.metrics(tmp_path / "run") == tiny.metrics(tmp_path / "whole" / "run")


@pytest.mark.skipif(times(0, 1) == 0, reason="takes long: make faults")
def test_a_folder_of_another_run_is_refused_again_after_a_restart(tmp_path: Path) -> None:
    alone = console.start([*TRAIN.split(), "--iterations", "2", "--shards", "2"], tmp_path)
    assert _code(alone) == 0
    before = tiny.metrics(tmp_path / "run")
    process = start(tmp_path, 1)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert said.count("already holds a run of train; continue it with --resume") == 2, said
    assert tiny.metrics(tmp_path / "run") == before
