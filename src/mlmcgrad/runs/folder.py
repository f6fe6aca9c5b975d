"""The run folder: what an experiment writes, so that its pictures can be drawn again from it.

    config.json     the settings, the seed and the versions
    metrics.jsonl   one JSON object a line, in the order of the run
    summary.json    the numbers that matter

Every file is written under another name first and then renamed: an interrupted run leaves the old
file or the new one, never half of one.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlmcgrad
from mlmcgrad.runs.atomic import write_atomically

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"


def write_config(folder: Path, config: Any) -> None:
    """Make the folder and write the settings of a run, with versions, into it."""
    settings = {
        k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(config).items()
    }
    record = {
        "experiment": type(config).__name__.lower(),
        "settings": settings,
        "versions": versions(),
    }
    write_json(folder / CONFIG, record)


def write_json(path: Path, record: Any) -> None:
    """Write a JSON file atomically, making its folder if need be."""
    _write(path, json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    _write(path, "".join(lines))


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode("utf-8"))


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"mlmcgrad": mlmcgrad.__version__, "python": platform.python_version()}
    return found | {name: version(name) for name in ("torch", "numpy")}


__all__ = [
    "CONFIG",
    "METRICS",
    "SUMMARY",
    "read_json",
    "read_lines",
    "versions",
    "write_config",
    "write_json",
    "write_lines",
]
