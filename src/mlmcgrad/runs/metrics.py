"""metrics.jsonl: what happened, one JSON object a line, in the order of the run.

Every line has an `iteration`. Lines with `final` are written at the end of a run that ends between
two regular lines; resuming the run removes them, so that a run that was extended has the lines of
one that was never shorter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.folder import METRICS, as_line


class Metrics:
    """The file, open for more lines; with TensorBoard, its files too.

    Args:
        folder: run folder.
        iteration: lines of later iterations are removed, and so are those marked `final`.
        tensorboard: write the numbers for TensorBoard too.
    """

    def __init__(self, folder: Path, iteration: int, tensorboard: bool = False) -> None:
        self.path = folder / METRICS
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        write_atomically(self.path, b"".join(line for line in lines if _belongs(line, iteration)))
        self._file = self.path.open("ab")
        self._board = _board(folder, iteration) if tensorboard else None

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a line; the operating system has it when this returns."""
        line = as_line(row)
        with self._explained():
            self._file.write(line)
            self._file.flush()
        if self._board is not None:
            for name, value in row.items():
                if isinstance(value, (int, float)) and name not in ("iteration", "final"):
                    self._board.add_scalar(name, value, row["iteration"])

    def sync(self) -> None:
        """Flush the lines to the disk: a checkpoint must not be ahead of them."""
        with self._explained():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write {self.path.name} in {self.path.parent} ({error.strerror}); the last "
                "checkpoint is intact: make room and continue with --resume",
            ) from error


def check_tensorboard() -> None:
    """Raise a ValueError if the package tensorboard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"tensorboard needs the package tensorboard ({error}); pip install tensorboard, or "
            "omit the flag: metrics.jsonl has the same numbers"
        ) from error


def _board(folder: Path, iteration: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=iteration + 1)


def _belongs(line: bytes, iteration: int) -> bool:
    if not line.endswith(b"\n"):  # cut short by a kill
        return False
    row = json.loads(line)
    return int(row["iteration"]) <= iteration and not row.get("final")
