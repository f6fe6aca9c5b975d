"""What a run counts: sums over the iterations of a line of `metrics.jsonl`, and seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlmcgrad.iwae.objective import Step

# theta_squared: ‖Ĥ‖² of the decoder, the second moment of one gradient estimate.
_MEANS = ("bound", "loss", "gradient_norm", "theta_squared", "effective", "largest")


@dataclass
class Window:
    """Sums over the iterations since the last line."""

    count: int = 0
    transitions: int = 0
    moves: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_MEANS, 0.0))
    levels: dict[int, int] = field(default_factory=dict)

    def add(self, step: Step, gradient_norm: float, theta_squared: float) -> None:
        """Count one iteration."""
        estimate = step.estimate
        self.count += 1
        self.transitions += estimate.transitions
        self.moves += estimate.acceptance * estimate.transitions
        values = (
            step.bound,
            estimate.value,
            gradient_norm,
            theta_squared,
            step.effective,
            step.largest,
        )
        for name, value in zip(_MEANS, values, strict=True):
            self.sums[name] += value
        levels, counts = estimate.levels.unique(return_counts=True)
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True):
            self.levels[level] = self.levels.get(level, 0) + count

    def summary(self) -> dict[str, Any]:
        """Means, the acceptance rate and the histogram of the levels."""
        means = {name: total / self.count for name, total in self.sums.items()}
        levels = {str(level): self.levels[level] for level in sorted(self.levels)}
        return {**means, "acceptance": self.moves / self.transitions, "levels": levels}


class Stopwatch:
    """Seconds of training: tests and checkpoints are no cost of a method.

    It runs from the beginning, except while it is paused.

    Args:
        seconds: the time it starts from.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._since: float | None = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time it shows."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still while it is entered."""
        self._seconds, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = time.perf_counter()
