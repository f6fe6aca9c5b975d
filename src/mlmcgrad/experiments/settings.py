"""What experiments have in common, as dataclasses that the command line is made from.

No module of settings imports torch, so that `mlmcgrad --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from mlmcgrad.ranges import whole

SEEDS = 2**53
"""Seeds are below this: generators are seeded by 1000 times as much, and torch takes 64 bits."""
JOBS = 1024
"""Most processes side by side: each of them loads torch."""
SLURM = 1000
"""Most jobs that are submitted at once."""

Preset: TypeAlias = Literal["smoke", "quick", "full"]
"""`smoke`: seconds, for tests. `quick`: minutes. `full`: as long as a good figure takes."""


@dataclass(frozen=True)
class Experiment:
    """What every experiment takes."""

    files: ClassVar[tuple[str, ...]] = ()  # what it writes besides the files of every run

    out: Path = Path("runs")
    """Run folder."""
    force: bool = False
    """Move an earlier run in the folder aside, into old-1, old-2, …; nothing is deleted."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What experiments take that are grids of independent runs."""

    join: bool = False
    """Share the folder with other processes that were started with --join, on any machine that sees
    it: each takes what no other has. Continues what is in the folder, as --resume does."""
    slurm: int = 0
    """Submit so many jobs, each of which joins the folder, and follow them; 0 computes here."""
    slurm_cluster: Literal["slurm", "local"] = "slurm"
    """Where jobs go: to Slurm, or to processes of this machine, to try it out."""
    slurm_options: tuple[str, ...] = ()
    """What a job asks of Slurm, such as time=600 (minutes) partition=NAME mem=4GB account=NAME."""

    def check(self) -> None:
        """Refuse what cannot be submitted."""
        whole(self.slurm, "slurm", 0, SLURM)
        for option in self.slurm_options:
            if not all(option.partition("=")[::2]):
                raise ValueError(f"slurm_options must be NAME=VALUE, got {option!r}")
        if not self.slurm and (self.slurm_options or self.slurm_cluster != "slurm"):
            raise ValueError("slurm must be ≥ 1 for slurm_options and slurm_cluster, got 0")

    @property
    def folder(self) -> Path:
        """The run folder."""
        raise NotImplementedError


@dataclass(frozen=True)
class Simulation(Grid, Experiment):
    """What experiments take that simulate for minutes, in parts that are saved one by one."""

    preset: Preset = "quick"
    """How much to compute: smoke (seconds), quick (minutes), full (longer)."""
    seed: int = 0
    """Everything random follows from it."""
    jobs: int = 2
    """Processes to run side by side."""
    resume: bool = False
    """Continue what is in the run folder, or start if it is empty."""

    def __post_init__(self) -> None:
        whole(self.seed, "seed", 0, SEEDS)
        whole(self.jobs, "jobs", 1, JOBS)
        self.check()

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out
