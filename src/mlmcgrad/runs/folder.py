"""The run folder: what a command writes, so that its figures can be redrawn from it.

    config.json     the settings, the seed and the versions
    metrics.jsonl   one JSON object a line, in the order of the run
    summary.json    the numbers that matter

Every file is written atomically: an interrupted run leaves the old file or the new one, never half
of one.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlmcgrad.runs.atomic import write_atomically

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
CHECKPOINTS, PARTS, CLAIMS, SLURM = "checkpoints", "parts", "taken", "slurm"


def as_record(config: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them: paths are text, tuples are lists."""
    record: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return record


def write_json(path: Path, record: Any) -> None:
    """Write a JSON file atomically, making its folder if need be."""
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, text.encode())


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    write_atomically(path, b"".join(map(as_line, rows)))


def as_line(row: Mapping[str, Any]) -> bytes:
    """One line of a file with one JSON object a line."""
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ValueError: it holds something else; the message names the file.
    """
    try:
        return parse(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it {error}") from error


def read_lines(path: Path, *, growing: bool = False) -> list[dict[str, Any]]:
    """Read a file with one JSON object a line.

    Args:
        path: the file.
        growing: a line without an end is one that is being written, or was when its process was
            killed: it is left out.

    Raises:
        ValueError: a line is damaged; the message names the file and the number of the line.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    if growing and lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(parse(line))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: line {number} {error}") from error
    return rows


def parse(text: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is something else; the message continues a sentence.
    """
    if not text.strip():
        raise ValueError("is empty")
    try:
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"has a byte that is not UTF-8 text ({error.reason})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"is JSON, but not an object: {text[:40].decode(errors='replace')!r}")
    return value


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = {name: version(name) for name in ("mlmcgrad", "torch", "numpy")}
    return {**packages, "python": platform.python_version()}
