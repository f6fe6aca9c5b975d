"""Checkpoints: written atomically, with a checksum; the last two are kept.

A file is what `torch.save` writes, followed by its SHA-256 in 64 hexadecimal digits. It is read
with `weights_only=True`: nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.folder import CHECKPOINTS

_LOG = logging.getLogger(__name__)
_KEPT = 2
_DIGITS = 64
_PATTERN = "iteration-*.pt"


def save(folder: Path, iteration: int, state: dict[str, Any]) -> Path:
    """Write the checkpoint of an iteration, then remove all but the last two.

    Args:
        folder: run folder.
        iteration: names the file.
        state: tensors, numbers and strings, in dicts and lists.

    Raises:
        OSError: it could not be written; the earlier checkpoints are intact.
    """
    path = folder / CHECKPOINTS / f"iteration-{iteration:09d}.pt"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    try:
        write_atomically(path, payload + hashlib.sha256(payload).hexdigest().encode())
    except OSError as error:
        older = _paths(folder)
        hint = f"; {older[-1].name} is intact, continue from it with --resume" if older else ""
        raise OSError(error.errno, f"{error.strerror}{hint}") from error
    for old in [path for path in _paths(folder) if path.is_file()][:-_KEPT]:
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        ValueError: the file is damaged, or cannot be read; the message names it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refusal(path, f"it cannot be read ({error.strerror})") from error
    payload, digits = content[:-_DIGITS], content[-_DIGITS:]
    if hashlib.sha256(payload).hexdigest().encode() != digits:
        reason = f"its {len(content)} bytes do not match their checksum"
        raise _refusal(path, f"{reason}, so it was cut short or altered")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # a file of another kind makes torch raise nearly anything
        raise _refusal(path, "it holds more, or else, than tensors, numbers and text") from error
    if not isinstance(state, dict):
        raise _refusal(path, f"it holds {type(state).__name__}, not a dict")
    return state


def latest(
    folder: Path, use: Callable[[Path, dict[str, Any]], None] | None = None, *, rename: bool = True
) -> dict[str, Any] | None:
    """The newest checkpoint that is intact; None if the run folder has no checkpoint.

    Args:
        folder: run folder.
        use: called with a checkpoint, newest first; its ValueError refuses the checkpoint.
        rename: refused ones, so that they never count among the two that are kept; who only reads
            leaves them.

    Raises:
        ValueError: there are checkpoints, and all of them are refused.
    """
    refused: list[tuple[Path, str]] = []
    for path in reversed(_paths(folder)):
        try:
            state = load(path)
            if use is not None:
                _use(use, path, state)
        except ValueError as error:
            refused.append((path, str(error)))
            continue
        for damaged, reason in refused:
            if rename:
                damaged.replace(damaged.with_name(damaged.name + ".refused"))
            _LOG.warning("%s; %s is used instead", reason, path.name)
        return state
    if refused:
        reasons = "; ".join(reason for _, reason in refused)
        raise ValueError(
            f"{reasons}. No checkpoint is left: put an intact one back, or move {folder} away and "
            "start again"
        )
    return None


def _use(use: Callable[[Path, dict[str, Any]], None], path: Path, state: dict[str, Any]) -> None:
    try:
        use(path, state)
    except ValueError as error:
        raise _refusal(path, str(error)) from error


def _refusal(path: Path, reason: str) -> ValueError:
    return ValueError(f"checkpoint {path.name} in {path.parent} is refused: {reason}")


def _paths(folder: Path) -> list[Path]:
    return sorted((folder / CHECKPOINTS).glob(_PATTERN))
