"""Options of `mlmcgrad reproduce` and `mlmcgrad report`, as the command line takes them.

Nothing here imports torch, so that `mlmcgrad --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import tyro

from mlmcgrad.experiments.settings import JOBS, Grid
from mlmcgrad.ranges import whole

PresetName: TypeAlias = Literal["smoke", "quick", "full", "paper"]
DatasetChoice: TypeAlias = Literal["digits", "mnist", "cifar10"]
OptimizerChoice: TypeAlias = Literal["amsgrad", "adagrad"]
MethodChoice: TypeAlias = Literal["iwae", "dreg", "jsa", "br", "mlmc", "mlmc-rb", "mlmc-is"]

# Name, least and most. A seed is a folder for each method and optimizer; iterations × stretch stays
# below the 2^53 that a training may have.
_RANGES = (("seeds", 1, 1000), ("jobs", 1, JOBS), ("iterations", 16, 2**31), ("stretch", 1, 2**20))


@dataclass(frozen=True)
class Reproduce(Grid):
    """Section 5 of the paper: its figures and its claims, measured, as one report."""

    preset: PresetName = "quick"
    """smoke: digits, seconds. quick: digits, minutes. full: CIFAR-10, about an hour on 2 cores.
    paper: CIFAR-10 as in Section 5; the command first says how many hours."""
    dataset: DatasetChoice | None = None
    """Images to train on, if not those of the preset."""
    optimizer: tuple[OptimizerChoice, ...] = ("amsgrad", "adagrad")
    """Optimizers, one or both."""
    methods: tuple[MethodChoice, ...] = get_args(MethodChoice)
    """Methods. Of the paper: iwae, br, mlmc. Beyond it: mlmc-rb, Rao-Blackwellised; mlmc-is, levels
    of importance sampling; dreg, IWAE with the doubly reparameterised gradient; jsa, persistent
    chains. Claims compare them with br, iwae and dreg."""
    seeds: int | None = None
    """Runs of each method and optimizer, with the seeds 1, 2, …"""
    jobs: int = 2
    """Runs side by side, each with one thread."""
    out: Path | None = None
    """Folder for the runs and the report; by default runs/reproduce- and the preset."""
    resume: bool = False
    """Continue from what is in the folder, or start if it is empty."""
    force: bool = False
    """Move what is in the way aside, into old-1, old-2, …: an earlier run, or with --resume only
    metrics.jsonl of runs where it is damaged. Nothing is deleted."""
    iterations: int | None = None
    """Iterations of br, if not those of the preset."""
    stretch: int | None = None
    """The other methods run this many times as many iterations; they still cost less."""
    device: str | None = None
    """Where to compute: cpu, cuda, …; by default cpu, and for the preset paper cuda if available.
    """

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            if getattr(self, name) is not None:
                whole(getattr(self, name), name, least, most)
        for name in ("optimizer", "methods"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must name each choice once, got {' '.join(values)!r}")
        self.check()

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or Path("runs") / f"reproduce-{self.preset}"


@dataclass(frozen=True)
class Report:
    """Build the report of a reproduction from its run folders; several stand side by side."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders that `mlmcgrad reproduce` has written."""
    out: Path | None = None
    """Folder for report.html, summary.json and figures; by default the folder itself, or
    runs/report for several."""
    force: bool = False
    """Move an earlier report in the folder aside, into old-1, old-2, …; nothing is deleted."""

    def __post_init__(self) -> None:
        if not self.folders:
            raise ValueError("folders must name at least one reproduction, got none")

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        return self.out or (self.folders[0] if len(self.folders) == 1 else Path("runs/report"))
