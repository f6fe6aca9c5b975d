"""Sums over the iterations between two lines of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlmcgrad.iwae.objective import Step

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
        """Means, the acceptance and the histogram of the levels."""
        means = {name: total / self.count for name, total in self.sums.items()}
        levels = {str(level): self.levels[level] for level in sorted(self.levels)}
        return {**means, "acceptance": self.moves / self.transitions, "levels": levels}

    def state(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        return {
            "count": self.count,
            "transitions": self.transitions,
            "moves": self.moves,
            "sums": dict(self.sums),
            "levels": dict(self.levels),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.count, self.transitions = state["count"], state["transitions"]
        self.moves, self.sums = state["moves"], dict(state["sums"])
        self.levels = dict(state["levels"])


__all__ = ["Window"]
