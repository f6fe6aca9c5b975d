"""metrics.jsonl has the lines of the run that is continued, and TensorBoard the same numbers."""

import errno
import os
import sys
import types
from pathlib import Path

import pytest

from mlmcgrad.runs.folder import read_lines
from mlmcgrad.runs.metrics import Metrics, intact
from tests.faults import files_at_most
from tests.training import tiny


def test_lines_beyond_the_checkpoint_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(tmp_path, (), 0)
    for row in ({"iteration": 1}, {"iteration": 2}, {"iteration": 2, "final": True}):
        metrics.add(row)
    metrics.add({"iteration": 3})
    metrics.close()
    path.write_bytes(path.read_bytes() + b'{"iteration": 2, "x"')  # cut short by a kill
    assert metrics.count == 4
    for count in (2, None):
        lines, wrong = intact(tmp_path, 2, count)
        assert (len(lines), wrong) == (2, "")
    Metrics(tmp_path, lines, 2).close()
    assert read_lines(path) == [{"iteration": 1}, {"iteration": 2}]


LINES = [b'{"iteration": 1}\n', b'{"iteration": 2}\n', b'{"iteration": 3}\n']


@pytest.mark.parametrize(
    ("content", "kept", "said"),
    [
        ([*LINES, b"\0\0\0\n", b"\xff"], 3, ""),  # done after the checkpoint: made again anyway
        ([LINES[0], b"\n", *LINES[1:]], 3, "line 2 of {} is empty"),
        ([LINES[0], b'{"iteration": \xff}\n', LINES[2]], 2, "line 2 of {} has a byte"),
        ([LINES[0], b"[2]\n", LINES[2]], 2, "line 2 of {} is JSON, but not an object"),
        ([LINES[0], b'{"nll": 2.0}\n', LINES[2]], 2, "line 2 of {} has no iteration"),
        ([LINES[0], b'{"iteration": "2"}\n', LINES[2]], 2, "line 2 of {} has no iteration"),
        (LINES[:2], 2, "{} has 2 of the 3 lines up to iteration 3"),
        ([*LINES[:2], b'{"iteration": 3'], 2, "{} has 2 of the 3 lines up to iteration 3"),
        ([*LINES[1:], b'{"iteration": 4}\n'], 2, "{} has 2 of the 3 lines up to iteration 3"),
        ([], 0, "{} has 0 of the 3 lines up to iteration 3"),
    ],
)
def test_what_is_wrong_with_the_lines_is_said(
    content: list[bytes], kept: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    if content:
        path.write_bytes(b"".join(content))
    lines, wrong = intact(tmp_path, 3, 3)
    assert len(lines) == kept
    assert wrong.startswith(said.format(path)) if said else not wrong


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, (), 0)
    metrics.add({"iteration": 1})
    with files_at_most(len(LINES[0]) + 5), pytest.raises(OSError, match=r"cannot write metrics"):
        metrics.add({"iteration": 2})
    assert metrics.path.read_bytes() == LINES[0]
    metrics.add({"iteration": 2})
    metrics.close()
    assert metrics.path.read_bytes() == LINES[0] + LINES[1]


def test_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(tmp_path, (), 0)

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
