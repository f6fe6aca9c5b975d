"""Whose a run folder is: one experiment with its settings, and one process at a time.

Every command that writes a folder holds it first. A folder with a run of another experiment, or
with files that this command would overwrite, is refused; `force` moves them aside, into the
subfolder `old-1`, `old-2`, …, and nothing is ever deleted. Files of the user's are not touched: a
run is known by the names of what its command writes.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

from mlmcgrad.runs.folder import (
    CHECKPOINTS,
    CLAIMS,
    CONFIG,
    METRICS,
    PARTS,
    SLURM,
    SUMMARY,
    as_record,
    read_json,
    versions,
    write_json,
)
from mlmcgrad.runs.lock import locked

_LOG = logging.getLogger(__name__)
_COMMON = (CONFIG, METRICS, SUMMARY, CHECKPOINTS, PARTS, CLAIMS, SLURM)
_REMEDY = "name another folder with --out, or move what is there aside with --force"


@dataclass(frozen=True)
class Owner:
    """An experiment, and what it writes."""

    experiment: str
    files: tuple[str, ...] = ()  # names or patterns, besides those that all runs have


@contextmanager
def held(
    folder: Path, owner: Owner, *, resume: bool, force: bool, shared: bool = False
) -> Iterator[dict[str, Any]]:
    """Hold a run folder, making it if need be; no other process can.

    Args:
        folder: the run folder.
        owner: the experiment that is to be run there.
        resume: continue what is in the folder, or start if nothing is.
        force: unless it is to be continued, move what is there aside.
        shared: hold it together with others that say so; claims decide who does what in it.

    Yields:
        What config.json of the run to continue holds; nothing for a new run.

    Raises:
        ValueError: the folder is in use, or holds a run of another experiment, or one of this
            experiment that is not to be continued, or files that a new run would overwrite.
    """
    fresh = force and not resume
    if not fresh:  # a folder that is refused stays as it is, without even a lock
        continued(folder, owner, resume)
    with locked(folder, shared=shared):
        if fresh:
            aside(folder, _entries(folder, owner, _claimed_by_its_config(folder)))
        yield continued(folder, owner, resume)


def aside(folder: Path, names: Collection[str]) -> None:
    """Move files and folders of a run folder into a new subfolder: `old-1`, `old-2` and so on.

    Raises:
        OSError: something cannot be moved; the message says what.
    """
    if not names:
        return
    for i in count(1):
        place = folder / f"old-{i}"
        if not os.path.lexists(place):
            break
    try:
        place.mkdir()
        # config.json last: if this is interrupted, it still says what else is to be moved.
        for name in sorted(names, key=lambda name: (name == CONFIG, name)):
            (folder / name).rename(place / name)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot move {', '.join(sorted(names))} to {place} ({error.strerror})"
        ) from error
    _LOG.warning("%s of %s: now in %s", ", ".join(sorted(names)), folder, place)


def write_config(folder: Path, owner: Owner, **content: Any) -> None:
    """Write config.json: whose folder it is, with what content, made with which versions."""
    record = {"experiment": owner.experiment, **content, "versions": versions()}
    write_json(folder / CONFIG, {**record, "files": list(owner.files)})


def check_same(
    path: Path, before: Any, settings: Any, free: Collection[str], **others: Any
) -> None:
    """Refuse settings that differ from those of an earlier run.

    Args:
        path: the file that holds those of the earlier run.
        before: those settings; what a file of an earlier version lacks had the default value.
        settings: the present ones, a dataclass.
        free: names of settings that may differ.
        others: more that must be the same.
    """
    if not isinstance(before, Mapping):
        raise ValueError(f"{path} is damaged: it has no settings; {_REMEDY}")
    usual = {f.name for f in dataclasses.fields(settings) if f.default == getattr(settings, f.name)}
    for name, value in {**as_record(settings), **others}.items():
        same = before[name] == value if name in before else name in usual
        if name not in free and not same:
            was = before.get(name)
            raise ValueError(f"{name} must be {was!r} as {path} says, got {value!r}; {_REMEDY}")


def continued(folder: Path, owner: Owner, resume: bool) -> dict[str, Any]:
    """What config.json of the run to continue holds; nothing for a new run; as `held` says."""
    entries = _entries(folder, owner)
    if not set(entries) - {CLAIMS, SLURM}:  # or another process is about to write config.json
        return {}
    if CONFIG not in entries:
        if resume and (folder / CHECKPOINTS).is_dir() and CHECKPOINTS in owner.files:
            return {}  # a checkpoint has the settings too
        raise ValueError(
            f"out: {folder} holds {entries[0]}, but no {CONFIG} that says of which run; {_REMEDY}"
        )
    try:
        config = read_json(folder / CONFIG)
    except ValueError as error:
        hint = "remove it, for the checkpoints have the settings too; or "
        raise ValueError(f"{error}; {hint if CHECKPOINTS in entries else ''}{_REMEDY}") from error
    experiment = config.get("experiment")
    if experiment != owner.experiment:
        known = isinstance(experiment, str)
        what = f"a run of {experiment}, as its {CONFIG} says" if known else f"a foreign {CONFIG}"
        raise ValueError(f"out: {folder} holds {what}; {_REMEDY}")
    if not resume:
        raise ValueError(
            f"out: {folder} already holds a run of {experiment}; continue it with --resume, "
            f"{_REMEDY}"
        )
    return config


def _claimed_by_its_config(folder: Path) -> list[str]:
    """What config.json says that its run writes, if it can be read."""
    try:
        files = read_json(folder / CONFIG).get("files")
    except (OSError, ValueError):
        return []
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


def _entries(folder: Path, owner: Owner, others: Collection[str] = ()) -> list[str]:
    """The names in a folder that a run has written, or that the owner would write."""
    if not folder.is_dir():
        return []
    patterns = {*_COMMON, *owner.files, *others}
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if any(fnmatchcase(name, each) for each in patterns)]
