"""Checkpoints: written whole or not at all, with a checksum, the last two kept.

A file is what `torch.save` makes, followed by the SHA-256 of it as 64 digits. It is read with
`weights_only=True`: nothing in it is run.
"""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
from pathlib import Path
from typing import Any

import torch

from mlmcgrad.runs.atomic import write_atomically

_LOG = logging.getLogger(__name__)
FOLDER = "checkpoints"
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
        OSError: it could not be written; the checkpoints that were there still are.
    """
    path = folder / FOLDER / f"iteration-{iteration:09d}.pt"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    try:
        write_atomically(path, payload + hashlib.sha256(payload).hexdigest().encode())
    except OSError as error:
        older = _paths(folder)
        rest = f"; {older[-1].name} is intact, continue from it with --resume" if older else ""
        raise OSError(error.errno, f"{error.strerror}{rest}") from error
    for old in _paths(folder)[:-_KEPT]:
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        ValueError: the file is not as it was written; the message names it.
    """
    whole = path.read_bytes()
    payload, digits = whole[:-_DIGITS], whole[-_DIGITS:]
    if hashlib.sha256(payload).hexdigest().encode() != digits:
        raise ValueError(
            f"checkpoint {path.name} in {path.parent} is refused: its {len(whole)} bytes do not "
            "match their checksum, so it was cut short or altered"
        )
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"checkpoint {path.name} in {path.parent} is refused: it holds more than tensors, "
            "numbers and text"
        ) from error


def latest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; None if the run folder has none at all.

    A refused one gets another name, so that it never counts as one of the two that are kept.

    Raises:
        ValueError: there are checkpoints, and all are refused.
    """
    refused: list[tuple[Path, str]] = []
    for path in reversed(_paths(folder)):
        try:
            state = load(path)
        except ValueError as error:
            refused.append((path, str(error)))
            continue
        for bad, reason in refused:
            bad.replace(bad.with_name(bad.name + ".refused"))
            _LOG.warning("%s; %s is used instead", reason, path.name)
        return state
    if refused:
        reasons = "; ".join(reason for _, reason in refused)
        raise ValueError(f"{reasons}. No checkpoint is left: start anew with another --out")
    return None


def _paths(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob(_PATTERN))


__all__ = ["FOLDER", "latest", "load", "save"]
