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

from mlmcgrad.files import write_atomically
from mlmcgrad.iwae.objective import Step

METRICS = "metrics.jsonl"
# theta_squared: ‖Ĥ‖² of the decoder, the second moment of one gradient estimate.
_MEANS = ("bound", "loss", "gradient_norm", "theta_squared", "effective", "largest")


class Window:
    """Sums over the iterations since the last line."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self.count, self.transitions, self.moves = 0, 0, 0.0
        self.sums = dict.fromkeys(_MEANS, 0.0)
        self.levels: dict[int, int] = {}

    def add(self, step: Step, gradient_norm: float, theta_squared: float) -> None:
        """Count one iteration."""
        estimate = step.estimate
        self.count += 1
        self.transitions += estimate.transitions
        self.moves += estimate.acceptance * estimate.transitions
        values = (
            step.bound, estimate.value, gradient_norm, theta_squared, step.effective, step.largest
        )  # fmt: skip
        for name, value in zip(_MEANS, values, strict=True):
            self.sums[name] += value
        levels, counts = estimate.levels.unique(return_counts=True)
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True):
            self.levels[level] = self.levels.get(level, 0) + count

    def summary(self) -> dict[str, Any]:
        """Means, the acceptance and the histogram of the levels."""
        means = {name: total / self.count for name, total in self.sums.items()}
        levels = {str(level): self.levels[level] for level in sorted(self.levels)}
        return {**means, "acceptance": self.moves / self.transitions, "levels": levels}

    def state(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        return {
            "count": self.count, "transitions": self.transitions, "moves": self.moves,
            "sums": dict(self.sums), "levels": dict(self.levels),
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.count, self.transitions = state["count"], state["transitions"]
        self.moves, self.sums = state["moves"], dict(state["sums"])
        self.levels = dict(state["levels"])


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


__all__ = ["METRICS", "Metrics", "Window", "check_tensorboard"]
