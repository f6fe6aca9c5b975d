"""metrics.jsonl: what happened, one JSON object a line, in the order of the run.

A line with `bound` sums up the iterations since the line before it; one with `nll` is a test. Lines
with `final` stand at the end of a run that ends between two regular lines: whoever resumes the run
removes them, so that a run that was extended has the lines of one that was never shorter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlmcgrad.runs.atomic import write_atomically

METRICS = "metrics.jsonl"


class Metrics:
    """The file, opened for more lines; with TensorBoard, its files too.

    Args:
        folder: run folder.
        iteration: lines of later iterations are removed, and so are those of the end of a run.
        tensorboard: write the numbers for TensorBoard too.
    """

    def __init__(self, folder: Path, iteration: int, tensorboard: bool = False) -> None:
        self.path = folder / METRICS
        kept = [line for line in _lines(self.path) if _belongs(line, iteration)]
        write_atomically(self.path, b"".join(kept))
        self._file = self.path.open("ab")
        self._board = _board(folder, iteration) if tensorboard else None

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a line; it is in the hands of the system when this returns."""
        text = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        with self._explained():
            self._file.write(text.encode())
            self._file.flush()
        if self._board is not None:
            for name, value in row.items():
                if isinstance(value, (int, float)) and name not in ("iteration", "final"):
                    self._board.add_scalar(name, value, row["iteration"])

    def sync(self) -> None:
        """Bring the lines to the disk: a checkpoint must not be ahead of them."""
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
    """Raise a ValueError if TensorBoard is wanted and not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"tensorboard needs the package tensorboard ({error}); pip install tensorboard, or "
            "leave the flag out: metrics.jsonl has the same numbers"
        ) from error


def _board(folder: Path, iteration: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=iteration + 1)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def _belongs(line: bytes, iteration: int) -> bool:
    if not line.endswith(b"\n"):  # cut short by a kill
        return False
    row = json.loads(line)
    return int(row["iteration"]) <= iteration and not row.get("final")


__all__ = ["METRICS", "Metrics", "check_tensorboard"]
