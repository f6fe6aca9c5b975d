"""Run folders: files are written completely or not at all, and no run overwrites another."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.runs import folder as records


def test_round_trip(tmp_path: Path) -> None:
    records.write_json(tmp_path / "new" / "a.json", {"β": [1.5, None]})
    assert records.read_json(tmp_path / "new" / "a.json") == {"β": [1.5, None]}
    records.write_lines(tmp_path / "m.jsonl", [{"n": 1}, {"n": 2}])
    assert records.read_lines(tmp_path / "m.jsonl") == [{"n": 1}, {"n": 2}]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    records.write_json(path, {"old": True})

    def full(descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write summary.json.*No space left.*make room"):
        records.write_json(path, {"new": True})
    assert records.read_json(path) == {"old": True}


def test_not_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()


@dataclass(frozen=True)
class Tasting:
    out: Path
    seed: int = 3


def test_a_folder_is_opened_once_or_resumed(tmp_path: Path) -> None:
    for resume in (True, False):
        assert records.claim(tmp_path, "tasting", resume=resume) == {}
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match="holds a run of an unknown command"):
        records.claim(tmp_path, "tasting", resume=True)
    records.write_config(tmp_path, Tasting(tmp_path))
    with pytest.raises(
        ValueError, match=r"out: .* already holds a run of tasting; .*--resume.*--out"
    ):
        records.claim(tmp_path, "tasting", resume=False)
    before = records.claim(tmp_path, "tasting", resume=True)
    assert before["settings"] == {"out": str(tmp_path), "seed": 3}
    assert before["versions"]["torch"] == torch.__version__
    for resume in (True, False):
        with pytest.raises(ValueError, match=r"holds a run of tasting; .*--out"):
            records.claim(tmp_path, "train", resume=resume)
