"""Transition matrices from text files."""

from __future__ import annotations

from pathlib import Path

STATES = 1024
"""Most states: powers of the matrix are computed, which takes many minutes for so many."""
_BYTES = 2**25  # of a file: 32 for each entry
_REMEDY = "compute the constants elsewhere, and give them with --zeta, --alpha and --beta"


def read_matrix(path: Path) -> list[list[float]]:
    """Read a matrix, one row per line, numbers separated by spaces, tabs, commas or semicolons.

    Empty lines and comments (from # to the end of a line) are skipped.
    """
    try:
        with path.open("rb") as file:  # not all of it: a device has no end
            content = file.read(_BYTES + 1)
        if len(content) > _BYTES:
            raise ValueError(f"matrix: {path} has more than {_BYTES // 2**20} MB; {_REMEDY}")
        text = content.decode("utf-8-sig")
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
    if len(rows) > STATES:
        raise ValueError(
            f"matrix: {path} must have at most {STATES} rows, got {len(rows)}; {_REMEDY}"
        )
    if len(rows) != (len(rows[0]) if rows else 1):
        raise ValueError(
            f"matrix: {path} must hold a square matrix, got {len(rows)} rows of "
            f"{len(rows[0]) if rows else 0} numbers"
        )
    return rows
