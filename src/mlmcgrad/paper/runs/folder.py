"""The run folder: what a command writes, so that its figures can be redrawn from it.

    config.json     the settings, the seed and the versions
    metrics.jsonl   one JSON object per line, in the order of the run
    summary.json    the numbers that matter

Files are written atomically: an interrupted run leaves the old file or the new one. A folder
belongs to one experiment with its settings, and one process uses it at a time. A folder with a run
of another experiment, or with files that a command would overwrite, is refused; `force` moves these
to the subfolder `old-1`, `old-2`, …, and nothing is deleted. No other files are touched: each
command has a fixed list of the files it writes, which nothing in the folder can change.

Every line of metrics.jsonl of a training has an `iteration`. Lines with `final` are written at the
end of a run that ends between two regular lines; resuming the run removes them, so that a run that
was extended has the lines of one that was never shorter.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from mlmcgrad._files import write_atomically

CONFIG, METRICS, SUMMARY, LOCK = "config.json", "metrics.jsonl", "summary.json", "lock"
CHECKPOINTS, PARTS = "checkpoints", "parts"
_LOG = logging.getLogger(__name__)
_COMMON = (CONFIG, METRICS, SUMMARY, CHECKPOINTS, PARTS)
_REMEDY = "name another folder with --out, or move what is there aside with --force"


def as_record(config: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON has them: paths as text, tuples as lists."""
    record: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return record


def write_json(path: Path, record: Any) -> None:
    """Write a JSON file atomically, making its folder if need be."""
    write_atomically(path, as_line(record, indent=2))


def as_line(record: Any, indent: int | None = None) -> bytes:
    r"""Return JSON in UTF-8, with bytes of paths that are not UTF-8 as escapes \udc80 to \udcff."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=indent)
    return f"{text}\n".encode(errors="backslashreplace")


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
    """Read a file with one JSON object per line.

    Args:
        path: the file.
        growing: leave out a last line without an end: it is being written, or its process was
            killed.

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
    """Return the JSON object that a text holds.

    Raises:
        ValueError: it is something else; the message continues a sentence.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"is JSON, but not an object: {text[:40].decode(errors='replace')!r}")
    return value


def versions() -> dict[str, str]:
    """Return the versions of what the numbers depend on."""
    packages = {name: version(name) for name in ("mlmcgrad", "torch", "numpy")}
    return {**packages, "python": platform.python_version()}


@dataclass(frozen=True)
class Owner:
    """An experiment, and what it writes."""

    experiment: str
    files: tuple[str, ...] = ()  # names or patterns, besides those that all runs have


@contextmanager
def held(folder: Path, owner: Owner, *, resume: bool, force: bool) -> Iterator[dict[str, Any]]:
    """Hold a run folder, making it if need be, so that no other process can use it.

    Args:
        folder: the run folder.
        owner: the experiment to run there.
        resume: continue the run in the folder, or start if there is none.
        force: unless `resume`, move an earlier run aside.

    Yields:
        The content of config.json of the run to continue; empty for a new run.

    Raises:
        ValueError: the folder is in use, or holds a run of another experiment, or one of this
            experiment that is not to be continued, or files that a new run would overwrite.
    """
    fresh = force and not resume
    if not fresh:  # a folder that is refused stays as it is, without even a lock
        _earlier(folder, owner, resume)
    with locked(folder):
        if fresh:
            aside(folder, _entries(folder, owner))
        yield _earlier(folder, owner, resume)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, making the folder if need be.

    The system releases the lock when the process ends, however it ends.

    Raises:
        ValueError: another process holds it.
        OSError: the folder cannot be made.
    """
    from filelock import FileLock, Timeout  # late: `mlmcgrad --help` does not need it

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(
            f"out: another process is using {folder}; wait for it, stop it, or name another folder "
            "with --out"
        ) from error
    try:
        yield
    finally:
        lock.release()


def aside(folder: Path, names: Collection[str]) -> None:
    """Move files and folders of a run folder into a new subfolder: `old-1`, `old-2` and so on."""
    if not names:
        return
    place = next(p for i in count(1) if not os.path.lexists(p := folder / f"old-{i}"))
    place.mkdir()
    # config.json last: if this is interrupted, it still says what else is to be moved.
    for name in sorted(names, key=lambda name: (name == CONFIG, name)):
        (folder / name).rename(place / name)
    _LOG.warning("%s of %s: now in %s", ", ".join(sorted(names)), folder, place)


def write_config(folder: Path, owner: Owner, **content: Any) -> None:
    """Write config.json: the experiment, its content, and the versions it was made with."""
    record = {"experiment": owner.experiment, **content, "versions": versions()}
    write_json(folder / CONFIG, {**record, "files": list(owner.files)})


def check_same(
    path: Path, before: Any, settings: Any, free: Collection[str], **others: Any
) -> None:
    """Refuse settings that differ from those of an earlier run.

    Args:
        path: the file that holds those of the earlier run.
        before: those settings; one that a file of an earlier version lacks had its default value.
        settings: the present ones, a dataclass.
        free: names of settings that may differ.
        others: more values that must be the same.
    """
    if not isinstance(before, Mapping):
        raise ValueError(f"{path} is damaged: it has no settings; {_REMEDY}")
    usual = {f.name for f in dataclasses.fields(settings) if f.default == getattr(settings, f.name)}
    for name, value in {**as_record(settings), **others}.items():
        same = before[name] == value if name in before else name in usual
        if name not in free and not same:
            was = before.get(name)
            raise ValueError(f"{name} must be {was!r} as {path} says, got {value!r}; {_REMEDY}")


def _earlier(folder: Path, owner: Owner, resume: bool) -> dict[str, Any]:
    """Return config.json of the run to continue, or nothing for a new run; raise as `held`."""
    entries = _entries(folder, owner)
    if not entries:
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


def _entries(folder: Path, owner: Owner) -> list[str]:
    """Return the names in a folder that the owner would write."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ()
    patterns = (*_COMMON, *owner.files)
    return [name for name in names if any(fnmatchcase(name, each) for each in patterns)]


class Metrics:
    """The file, open for more lines; with TensorBoard, its files too.

    Args:
        folder: run folder.
        lines: what the file holds so far, see `intact`; anything else in it is removed.
        tensorboard: write the numbers for TensorBoard too.

    Attributes:
        count: lines in the file.
    """

    def __init__(self, folder: Path, lines: Sequence[bytes], tensorboard: bool = False) -> None:
        self.path, self.count = folder / METRICS, len(lines)
        write_atomically(self.path, b"".join(lines))
        self._board: Any = None
        self._shown: dict[str, int] = {}  # the last iteration of each number in TensorBoard
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # A run that is resumed may have lost lines: TensorBoard forgets all that it has.
            with self._explained("tensorboard"):
                self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
            for row in map(parse, lines):
                self._show(row)
        self._file = self.path.open("ab", buffering=0)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a line; the operating system has it when this returns.

        Raises:
            OSError: it could not be written, and no part of it is in the file.
        """
        line, before = as_line(row), self._file.seek(0, os.SEEK_END)
        with self._explained():
            try:
                while line:  # a disk with some room left takes a part of it
                    line = line[self._file.write(line) :]
            except OSError:
                with suppress(OSError):
                    self._file.truncate(before)
                raise
        self.count += 1
        self._show(row)

    def sync(self) -> None:
        """Flush the lines to the disk: a checkpoint must not be ahead of them."""
        with self._explained():
            os.fsync(self._file.fileno())
        if self._board is not None:
            with self._explained("tensorboard"):
                self._board.flush()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _show(self, row: Mapping[str, Any]) -> None:
        """Give TensorBoard the numbers of a line, each one once per iteration."""
        if self._board is None:
            return
        step = row["iteration"]
        with self._explained("tensorboard"):
            for name, value in row.items():
                new = name not in ("iteration", "final") and self._shown.get(name) != step
                if new and isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, step)
                    self._shown[name] = step

    @contextmanager
    def _explained(self, name: str = METRICS) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write {name} in {self.path.parent} ({error.strerror}); the last "
                "checkpoint is intact: make room and continue with --resume",
            ) from error


def intact(folder: Path, iteration: int, count: int) -> tuple[list[bytes], str]:
    """Return the lines that a run had written when it made a checkpoint.

    What follows them, whole or not, is what the run did afterwards; it will be done again.

    Args:
        folder: run folder.
        iteration: that of the checkpoint; later lines and those marked `final` follow it.
        count: how many lines there were.

    Returns:
        The lines that are intact, and what is wrong with the others: nothing, or a sentence.
    """
    path, kept = folder / METRICS, []
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    for line in lines[:count]:
        with suppress(ValueError, KeyError, TypeError):
            row = parse(line)
            if line.endswith(b"\n") and row["iteration"] <= iteration and "final" not in row:
                kept.append(line)
    wrong = f"{path} has {len(kept)} intact lines of the {count} up to iteration {iteration}"
    return kept, wrong if len(kept) < count else ""
