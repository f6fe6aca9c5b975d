"""Checkpoints are whole or refused by name, and the one before is never lost."""

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.paper.runs.folder import CHECKPOINTS
from mlmcgrad.paper.training import loop
from tests.paper.training import tiny


def _files(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / CHECKPOINTS).iterdir())


def _fill(folder: Path) -> None:
    for n in (1, 2, 3):
        loop.save_checkpoint(folder, n, {"n": n, "x": torch.arange(n), "text": {"a": [1.5, None]}})


def test_round_trip_and_the_last_two_are_kept(tmp_path: Path) -> None:
    assert loop.latest_checkpoint(tmp_path) is None
    _fill(tmp_path)
    assert _files(tmp_path) == ["iteration-000000002.pt", "iteration-000000003.pt"]
    state = loop.latest_checkpoint(tmp_path)
    assert tiny.same(state, {"n": 3, "x": torch.arange(3), "text": {"a": [1.5, None]}})


@pytest.mark.parametrize("damage", ["cut", "altered", "empty", "checksum"])
def test_a_damaged_one_is_refused_by_name_and_the_one_before_is_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    _fill(tmp_path)
    newest = tmp_path / CHECKPOINTS / "iteration-000000003.pt"
    whole = newest.read_bytes()
    middle = len(whole) // 2
    changed = {
        "cut": whole[:middle],
        "altered": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "empty": b"",
        "checksum": whole[:-1] + b"x",
    }
    newest.write_bytes(changed[damage])
    with pytest.raises(ValueError, match="bytes do not match their checksum"):
        loop.load_checkpoint(newest)
    with caplog.at_level(logging.WARNING):
        state = loop.latest_checkpoint(tmp_path)
    assert state is not None
    assert state["n"] == 2
    assert "iteration-000000003.pt" in caplog.text
    assert "iteration-000000002.pt is used instead" in caplog.text
    # It does not count as one of the two.
    loop.save_checkpoint(tmp_path, 4, {"n": 4})
    assert [n for n in _files(tmp_path) if n.endswith(".pt")] == [
        "iteration-000000002.pt",
        "iteration-000000004.pt",
    ]


@pytest.mark.parametrize("which", [2, 3])
def test_a_folder_in_the_place_of_one_is_left_there_or_moved(which: int, tmp_path: Path) -> None:
    _fill(tmp_path)
    path = tmp_path / CHECKPOINTS / f"iteration-00000000{which}.pt"
    path.unlink()
    path.mkdir()
    state = loop.latest_checkpoint(tmp_path)
    assert state is not None
    assert state["n"] == 5 - which
    for n in (3, 4, 5):
        loop.save_checkpoint(tmp_path, n, {"n": n})
    place = path if which == 2 else path.with_name(path.name + ".refused")
    assert place.is_dir()
    assert [p.name[-4] for p in sorted(path.parent.glob("*.pt")) if p.is_file()] == ["4", "5"]


def test_when_all_are_damaged_the_error_names_them(tmp_path: Path) -> None:
    _fill(tmp_path)
    for path in (tmp_path / CHECKPOINTS).iterdir():
        path.write_bytes(path.read_bytes()[:-70])
    with pytest.raises(ValueError, match=r"000003.pt .* refused.*000002.pt .* refused.*is left"):
        loop.latest_checkpoint(tmp_path)
    assert len(_files(tmp_path)) == 2  # nothing was thrown away


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    loop.save_checkpoint(tmp_path, 1, {"n": Evil()})
    with pytest.raises(ValueError, match=r"refused: it holds more, or else, than tensors"):
        loop.latest_checkpoint(tmp_path)


@pytest.mark.parametrize("moment", ["file", "folder"])
def test_a_full_disk_leaves_the_old_ones(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(tmp_path)
    real, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == (1 if moment == "file" else 2):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"iteration-000000004.pt.*No space left.*intact"):
        loop.save_checkpoint(tmp_path, 4, {"n": 4})
    monkeypatch.undo()
    assert not [name for name in _files(tmp_path) if name.endswith(".part")]
    state = loop.latest_checkpoint(tmp_path)
    assert state is not None
    # After the rename the new one is whole as well.
    assert state["n"] == (3 if moment == "file" else 4)
    assert loop.load_checkpoint(tmp_path / CHECKPOINTS / "iteration-000000003.pt")["n"] == 3
