"""Transition matrices from text files."""

from __future__ import annotations

from pathlib import Path


def read_matrix(path: Path) -> list[list[float]]:
    """Read a matrix, one row per line, numbers separated by spaces, tabs, commas or semicolons.

    Empty lines and comments (from # to the end of a line) are skipped.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise ValueError(f"matrix: cannot read {path} ({why})") from error
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        entries = line.split("#")[0].replace(",", " ").replace(";", " ").split()
        if not entries:
            continue
        try:
            rows.append([float(entry) for entry in entries])
        except ValueError as error:
            raise ValueError(
                f"matrix: line {number} of {path} is not a row of numbers: {line.strip()[:60]!r}"
            ) from error
        if len(rows[-1]) != len(rows[0]):
            raise ValueError(
                f"matrix: line {number} of {path} has {len(rows[-1])} numbers, the first row has "
                f"{len(rows[0])}"
            )
    if len(rows) != (len(rows[0]) if rows else 1):
        raise ValueError(
            f"matrix: {path} must hold a square matrix, got {len(rows)} rows of "
            f"{len(rows[0]) if rows else 0} numbers"
        )
    return rows
