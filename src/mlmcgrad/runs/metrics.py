"""metrics.jsonl: what happened, one JSON object a line, in the order of the run.

Every line has an `iteration`. Lines with `final` are written at the end of a run that ends between
two regular lines; resuming the run removes them, so that a run that was extended has the lines of
one that was never shorter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.folder import METRICS, as_line, parse


class Metrics:
    """The file, open for more lines; with TensorBoard, its files too.

    Args:
        folder: run folder.
        lines: what the file holds so far, see `intact`; anything else in it is removed.
        iteration: that of the last of them; TensorBoard forgets what came later.
        tensorboard: write the numbers for TensorBoard too, also those of `lines` if they are not
            there.

    Attributes:
        count: lines in the file.
    """

    def __init__(
        self, folder: Path, lines: Sequence[bytes], iteration: int, tensorboard: bool = False
    ) -> None:
        self.path, self.count = folder / METRICS, len(lines)
        write_atomically(self.path, b"".join(lines))
        self._board: Any = None
        self._shown: tuple[int, set[str]] = (-1, set())  # an iteration, and what TensorBoard has
        if tensorboard:
            self._open_board(folder / "tensorboard", lines, iteration)
        self._file = self.path.open("ab", buffering=0)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a line; the operating system has it when this returns.

        Raises:
            OSError: it could not be written, and no part of it is in the file.
        """
        with self._explained():
            self._append(as_line(row))
        self.count += 1
        if self._board is not None:
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

    def _open_board(self, folder: Path, lines: Sequence[bytes], iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Numbers of the last iteration may be of lines that are no longer there: all are made anew.
        first = iteration if folder.exists() else 0
        with self._explained(folder.name):
            self._board = SummaryWriter(str(folder), purge_step=first)
        for row in map(parse, lines):
            if row["iteration"] >= first:
                self._show(row)

    def _show(self, row: Mapping[str, Any]) -> None:
        """Give TensorBoard the numbers of a line; those it has of this iteration it keeps."""
        step = row["iteration"]
        if step != self._shown[0]:
            self._shown = (step, {"iteration", "final"})
        with self._explained("tensorboard"):
            for name, value in row.items():
                if isinstance(value, (int, float)) and name not in self._shown[1]:
                    self._board.add_scalar(name, value, step)
                    self._shown[1].add(name)

    def _append(self, line: bytes) -> None:
        before = self._file.seek(0, os.SEEK_END)
        try:
            while line:  # a disk with some room left takes a part of it
                line = line[self._file.write(line) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(before)
            raise

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


def intact(folder: Path, iteration: int, count: int | None) -> tuple[list[bytes], str]:
    """The lines that a run had written when it made a checkpoint.

    What follows them, whole or not, is what the run did afterwards; it will be done again.

    Args:
        folder: run folder.
        iteration: that of the checkpoint; later lines and those marked `final` follow it.
        count: how many lines there were; None if the checkpoint does not say (version 0.1).

    Returns:
        The lines that are intact, and what is wrong with the others: nothing, or a sentence.
    """
    path = folder / METRICS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    kept: list[bytes] = []
    wrong = ""
    for number, line in enumerate(lines, start=1):
        if len(kept) == count or not line.endswith(b"\n"):
            break
        try:
            row = parse(line)
            if not isinstance(row.get("iteration"), int):
                raise ValueError("has no iteration")
        except ValueError as error:
            wrong = wrong or f"line {number} of {path} {error}"
            continue
        if row["iteration"] > iteration or row.get("final"):
            break
        kept.append(line)
    if count is not None and len(kept) < count:
        wrong = wrong or f"{path} has {len(kept)} of the {count} lines up to iteration {iteration}"
    return kept, wrong


def check_tensorboard() -> None:
    """Raise a ValueError if the package tensorboard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"tensorboard needs the package tensorboard ({error}); pip install tensorboard, or "
            "omit the flag: metrics.jsonl has the same numbers"
        ) from error
