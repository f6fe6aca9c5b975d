"""Run folders: files are written completely or not at all, and no run overwrites another."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.paper.runs import folder as records


def test_round_trip(tmp_path: Path) -> None:
    records.write_json(tmp_path / "new" / "a.json", {"β": [1.5, None]})
    assert records.read_json(tmp_path / "new" / "a.json") == {"β": [1.5, None]}
    (tmp_path / "m.jsonl").write_bytes(records.as_line({"n": 1}) + records.as_line({"n": 2}))
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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is not JSON"),
        (b" \n", "it is not JSON"),
        (b'{"a": 1', "it is not JSON"),
        (b'{"a": "\xff"}', "it is not JSON .*utf-8"),
        (b"[1, 2]", r"it is JSON, but not an object: '\[1, 2\]'"),
        (b"[" * 100_000, "it is not JSON"),
    ],
)
def test_a_damaged_file_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{path} is damaged: {said}"):
        records.read_json(path)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"n": 1}\n\n{"n": 2}\n')
    with pytest.raises(ValueError, match=rf"^{path} is damaged: line 2 is not JSON"):
        records.read_lines(path)
    path.write_bytes(b'{"n": 1}\n{"n"')
    with pytest.raises(ValueError, match=r"line 2 is not JSON"):
        records.read_lines(path)
    assert records.read_lines(path, growing=True) == [{"n": 1}]
