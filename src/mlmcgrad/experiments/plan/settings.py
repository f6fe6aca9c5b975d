"""Settings of `mlmcgrad plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from mlmcgrad.experiments.settings import SEEDS
from mlmcgrad.ranges import positive, whole

FILES = ("plan.png", "plan.svg", "compare.png", "compare.svg")
BUDGET = 1e15
"""Most evaluations of a budget: years."""
EVALUATIONS = 1e9
"""Most evaluations of a pilot or a contender: days."""


@dataclass(frozen=True)
class Plan:
    """Choose the decoder's gradient for the model in the last checkpoint of a training."""

    run: tyro.conf.Positional[Path]
    """Folder of the training."""
    budget: float = 1e6
    """Evaluations of the decoder over which the gradient is averaged."""
    simulations: int | None = None
    """Among how many simulations they are divided at least; by default 200 batches of the
    training, and at most one for every 4 times its candidates."""
    rows: int = 64
    """Training images that are simulated, chosen at random."""
    evaluations: float = 50_000.0
    """Of each pilot, and of each gradient that is compared; more take longer and see more."""
    seed: int = 0
    """Everything random follows from it."""
    out: Path | None = None
    """Folder for the numbers and figures; by default the folder plan in that of the training."""
    force: bool = False
    """Move an earlier run in the folder aside, into old-1, old-2, …; nothing is deleted."""

    def __post_init__(self) -> None:
        for name, most in (("budget", BUDGET), ("evaluations", EVALUATIONS)):
            if positive(getattr(self, name), name) > most:
                raise ValueError(f"{name} must be ≤ {most:.0e}, got {getattr(self, name)!r}")
        if self.simulations is not None:
            whole(self.simulations, "simulations", 1, 2**53)
        whole(self.rows, "rows", 1, 2**20)
        whole(self.seed, "seed", 0, SEEDS)

    @property
    def folder(self) -> Path:
        """Where the numbers and figures go."""
        return self.run / "plan" if self.out is None else self.out
