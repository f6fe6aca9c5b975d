"""What every experiment takes, as a dataclass that the command line is made from.

Nothing here imports torch, so that `mlmcgrad --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Preset: TypeAlias = Literal["smoke", "quick", "full"]
"""`smoke`: seconds, for tests. `quick`: minutes. `full`: as long as a good figure takes."""


@dataclass(frozen=True)
class Experiment:
    """What every experiment takes."""

    preset: Preset = "quick"
    """How much to compute: smoke (seconds), quick (minutes), full (longer)."""
    out: Path | None = None
    """Run folder; by default runs/ followed by the name of the command."""
    seed: int = 0
    """Everything random follows from it."""
    jobs: int = 2
    """Processes to run side by side."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or Path("runs") / type(self).__name__.lower()


__all__ = ["Experiment", "Preset"]
