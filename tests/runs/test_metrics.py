"""metrics.jsonl has the lines of the run that is continued, and TensorBoard the same numbers."""

import errno
import os
import sys
import types
from pathlib import Path

import pytest

from mlmcgrad.runs.folder import read_lines
from mlmcgrad.runs.metrics import Metrics
from tests.training import tiny


def test_lines_beyond_the_checkpoint_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(tmp_path, 0)
    for row in ({"iteration": 1}, {"iteration": 2}, {"iteration": 2, "final": True}):
        metrics.add(row)
    metrics.add({"iteration": 3})
    metrics.close()
    path.write_bytes(path.read_bytes() + b'{"iteration": 2, "x"')  # cut short by a kill
    Metrics(tmp_path, 2).close()
    assert read_lines(path) == [{"iteration": 1}, {"iteration": 2}]


def test_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(tmp_path, 0)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write metrics.jsonl.*No space left.*--resume"):
        metrics.sync()
    metrics.close()


def test_tensorboard_is_wanted_but_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        tiny.run(tmp_path, tensorboard=True)
    assert not list(tmp_path.iterdir())


class _Writer:
    """Stands in for TensorBoard's writer."""

    rows: list[tuple[str, float, int]] = []  # noqa: RUF012

    def __init__(self, folder: str, purge_step: int) -> None:
        assert purge_step == 1

    def add_scalar(self, name: str, value: float, iteration: int) -> None:
        self.rows.append((name, value, iteration))

    def close(self) -> None:
        self.rows.append(("closed", 0.0, 0))


def test_tensorboard_gets_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = _Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    tiny.run(tmp_path, tensorboard=True)
    rows = tiny.metrics(tmp_path)
    assert ("bound", rows[0]["bound"], 4) in _Writer.rows
    tests = [row for row in rows if "nll" in row]
    assert ("nll", tests[0]["nll"], 7) in _Writer.rows
    assert _Writer.rows[-1][0] == "closed"
