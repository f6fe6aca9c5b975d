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
CHECKPOINTS = "checkpoints"


def claim(folder: Path, experiment: str, *, resume: bool) -> dict[str, Any]:
    """Check that a run may be started or continued in a folder.

    Args:
        folder: the run folder; it need not exist.
        experiment: name of the command.
        resume: continue what is in the folder, or start if it is empty.

    Returns:
        What config.json of the run to continue holds; nothing for a new run.

    Raises:
        ValueError: the folder holds a run of another command, or of this one and `resume` is False.
    """
    if not any((folder / name).exists() for name in (CONFIG, METRICS, SUMMARY, CHECKPOINTS)):
        return {}
    config: dict[str, Any] = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    owner = config.get("experiment", "an unknown command")
    if owner != experiment:
        raise ValueError(f"out: {folder} holds a run of {owner}; name another folder with --out")
    if not resume:
        raise ValueError(
            f"out: {folder} already holds a run of {experiment}; continue it with --resume, or "
            "name another folder with --out"
        )
    return config


def write_config(folder: Path, config: Any) -> None:
    """Make the folder and write the settings of a run, with versions, into it."""
    record = {
        "experiment": type(config).__name__.lower(),
        "settings": as_record(config),
        "versions": versions(),
    }
    write_json(folder / CONFIG, record)


def as_record(config: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them: paths are text."""
    fields = dataclasses.asdict(config)
    return {name: str(v) if isinstance(v, Path) else v for name, v in fields.items()}


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


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = {name: version(name) for name in ("mlmcgrad", "torch", "numpy")}
    return {**packages, "python": platform.python_version()}
