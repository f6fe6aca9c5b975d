"""Run folders are written whole or not at all."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

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
