"""metrics.jsonl has the lines of the run that is continued, and TensorBoard the same numbers."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from mlmcgrad.cli import main
from mlmcgrad.paper.runs.folder import Metrics, intact, read_lines
from mlmcgrad.paper.training import loop
from tests.faults import files_at_most
from tests.paper.training import tiny


@pytest.fixture(autouse=True)
def _files_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one process and second are read by name: number 10 would come before number 9."""
    counter = event_file_writer.AtomicCounter(1000)
    monkeypatch.setattr(event_file_writer, "_global_uid", counter)


def test_lines_beyond_the_checkpoint_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(tmp_path, ())
    for row in ({"iteration": 1}, {"iteration": 2}, {"iteration": 2, "final": True}):
        metrics.add(row)
    metrics.add({"iteration": 3})
    metrics.close()
    path.write_bytes(path.read_bytes() + b'{"iteration": 2, "x"')  # cut short by a kill
    assert metrics.count == 4
    lines, wrong = intact(tmp_path, 2, 2)
    assert (len(lines), wrong) == (2, "")
    Metrics(tmp_path, lines).close()
    assert read_lines(path) == [{"iteration": 1}, {"iteration": 2}]


LINES = [b'{"iteration": 1}\n', b'{"iteration": 2}\n', b'{"iteration": 3}\n']


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ([*LINES, b"\0\0\0\n", b"\xff"], 3),  # done after the checkpoint: made again anyway
        ([LINES[0], b"\n", *LINES[1:]], 2),
        ([LINES[0], b'{"iteration": \xff}\n', LINES[2]], 2),
        ([LINES[0], b"[2]\n", LINES[2]], 2),
        ([LINES[0], b'{"nll": 2.0}\n', LINES[2]], 2),
        ([LINES[0], b'{"iteration": "2"}\n', LINES[2]], 2),
        (LINES[:2], 2),
        ([*LINES[:2], b'{"iteration": 3'], 2),
        ([*LINES[1:], b'{"iteration": 4}\n'], 2),
        ([*LINES[1:], b'{"iteration": 3, "final": true}\n'], 2),
        ([], 0),
    ],
)
def test_what_is_wrong_with_the_lines_is_said(
    content: list[bytes], kept: int, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    if content:
        path.write_bytes(b"".join(content))
    lines, wrong = intact(tmp_path, 3, 3)
    assert [line for line in LINES if line in lines] == lines
    assert len(lines) == kept
    said = f"{path} has {kept} intact lines of the 3 up to iteration 3"
    assert wrong == ("" if kept == 3 else said)


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, ())
    metrics.add({"iteration": 1})
    with files_at_most(len(LINES[0]) + 5), pytest.raises(OSError, match=r"cannot write metrics"):
        metrics.add({"iteration": 2})
    assert metrics.path.read_bytes() == LINES[0]
    metrics.add({"iteration": 2})
    metrics.close()
    assert metrics.path.read_bytes() == LINES[0] + LINES[1]


def test_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(tmp_path, ())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write metrics.jsonl.*No space left.*--resume"):
        metrics.sync()
    metrics.close()


def test_tensorboard_is_wanted_but_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["train", "--tensorboard", "--out", str(tmp_path)]) == 2
    assert "needs the package tensorboard; pip install tensorboard" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def _board(folder: Path) -> dict[tuple[str, int], float]:
    """What TensorBoard reads: a value for each name and step, none of them twice."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    read = [(tag, e.step, e.value) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)]
    found = {(tag, step): value for tag, step, value in read}
    assert len(found) == len(read)
    return found


def _lines(folder: Path) -> dict[tuple[str, int], float]:
    """The numbers of metrics.jsonl, as float32: of those of an iteration the first."""
    found: dict[tuple[str, int], float] = {}
    for row in read_lines(folder / "metrics.jsonl"):
        for name, value in row.items():
            if isinstance(value, int | float) and name not in ("iteration", "final"):
                found.setdefault((name, row["iteration"]), float(np.float32(value)))
    return found


def test_tensorboard_has_the_numbers_of_the_file(tmp_path: Path) -> None:
    tiny.run(tmp_path, tensorboard=True)
    found = _board(tmp_path)
    assert found == _lines(tmp_path)
    assert {step for name, step in found if name == "bound"} == {4, 8, 12, 16, 20, 24}
    assert {step for name, step in found if name == "nll"} == {7, 14, 21, 24}
    assert not [name for name, _ in found if name in ("iteration", "final", "levels")]


@pytest.mark.parametrize("first", [True, False], ids=["from the beginning", "later"])
def test_tensorboard_after_resuming(first: bool, tmp_path: Path) -> None:
    """Also of the lines at the ends on the way, and of a run that had none at first."""
    tiny.run(tmp_path, iterations=9, tensorboard=first)  # a line and a test of iteration 9
    for iterations in (9, 16, 24):  # 16 is one of the regular lines and has another test
        tiny.run(tmp_path, iterations=iterations, resume=True, tensorboard=True)
        assert _board(tmp_path) == _lines(tmp_path)
    assert ("nll", 9) not in _board(tmp_path)
    assert ("nll", 16) not in _board(tmp_path)


def test_tensorboard_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between two checkpoints, without a chance to close anything."""
    tiny.run(tmp_path / "whole", tensorboard=True)
    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "close", lambda metrics: metrics._file.close())
        patch.setattr(
            "mlmcgrad.paper.training.loop.save_checkpoint", _killed_at(15, loop.save_checkpoint)
        )
        with pytest.raises(InterruptedError):
            tiny.run(tmp_path / "cut", tensorboard=True)
    assert {step for _, step in _board(tmp_path / "cut")} == {4, 7, 8, 12, 14}
    tiny.run(tmp_path / "cut", tensorboard=True, resume=True)
    found = _board(tmp_path / "cut")
    assert found == _lines(tmp_path / "cut")
    expected = _board(tmp_path / "whole")
    assert {k: v for k, v in found.items() if k[0] != "seconds"} == {
        k: v for k, v in expected.items() if k[0] != "seconds"
    }


def _killed_at(iteration: int, save: Callable[..., Any]) -> Callable[..., Any]:
    def killed(folder: Path, now: int, state: dict[str, Any]) -> Any:
        if now == iteration:
            raise InterruptedError
        return save(folder, now, state)

    return killed


def test_tensorboard_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write tensorboard in .*File exists"):
        Metrics(tmp_path, (), tensorboard=True)
