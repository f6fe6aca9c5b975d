"""Transition matrices from files: what is wrong with one is said, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.experiments.bound import run as bound
from mlmcgrad.experiments.bound.matrix_file import read_matrix
from mlmcgrad.experiments.bound.settings import Bound


def test_separators_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text("# from, to\n0.7, 0.3\n\n0.2;\t0.8  # sticky\n")
    assert read_matrix(path) == [[0.7, 0.3], [0.2, 0.8]]
    path.write_text("0.7, 0.3\n0.2, 0.8\n", encoding="utf-8-sig")  # as spreadsheets write it
    assert read_matrix(path) == [[0.7, 0.3], [0.2, 0.8]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5 0.5\n0.5 x\n", r"line 2 of .* is not a row of numbers: '0.5 x'"),
        ("0.5 0.5\n1.0\n", "line 2 of .* has 1 numbers, the first row has 2"),
        ("0.5 0.5\n", "must hold a square matrix, got 1 rows of 2 numbers"),
        ("", "must hold a square matrix, got 0 rows"),
        ("1\n" * 1025, "must have at most 1024 rows, got 1025; compute the constants elsewhere"),
        ("0 " * 2**25, "has more than 32 MB; compute the constants elsewhere"),
        ("nan 1\n0.5 0.5\n", r"P must be finite, got P\[0, 0\] = nan"),
        ("1e999 1\n0.5 0.5\n", r"P must be finite, got P\[0, 0\] = inf"),
        ("0.5 0.6\n0.5 0.5\n", "not row-stochastic: row 0 sums to 1.1"),
        ("0 1\n1 0\n", "not aperiodic: its period is 2"),
        ("1 0\n0 1\n", "not irreducible"),
    ],
)
def test_bad_matrices(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        bound.run(Bound(tmp_path / "out", matrix=path), Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_unreadable_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bound", "--out", str(tmp_path / "out"), "--matrix"]
    assert main([*arguments, str(tmp_path / "absent")]) == 2
    assert "matrix: cannot read" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert main([*arguments, str(tmp_path / "binary")]) == 2
    assert "it is not a text file" in capsys.readouterr().err
    assert main([*arguments, "/dev/zero"]) == 2  # which has no end
    assert "/dev/zero has more than 32 MB" in capsys.readouterr().err
