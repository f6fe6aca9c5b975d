"""Settings of the experiments, as dataclasses that the command line is made from.

Nothing here imports torch, so that `mlmcgrad --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import tyro

Preset: TypeAlias = Literal["smoke", "quick", "full"]
"""`smoke`: seconds, for tests. `quick`: minutes. `full`: as long as a good figure takes."""


@dataclass(frozen=True)
class Data:
    """Fetch a dataset, verify it and say where it is cached."""

    dataset: tyro.conf.Positional[Literal["cifar10", "digits"]]
    """Which one: cifar10 is downloaded once (140 to 170 MB), digits ships with scikit-learn."""
    source: Path | None = None
    """Folder or tarball that has CIFAR-10, instead of the cache and of a download."""

    def __post_init__(self) -> None:
        if self.source is not None and self.dataset != "cifar10":
            raise ValueError(
                f"source is for cifar10 only, got {self.source} for {self.dataset}, which ships "
                "with scikit-learn; leave it out"
            )


@dataclass(frozen=True)
class Demo:
    """Bias, variance and cost of a short chain, a long average and MLMC, where they are known."""

    out: Path = Path("runs/demo")
    """Folder for the table, the figure and the settings."""
    seed: int = 0
    """Everything random follows from it."""
    chains: int = 20_000
    """Independent estimates of each method, from which bias and variance are measured."""
    truncation: int = 64
    """Chain length T that the long average runs and that MLMC stands in for; a power of two."""
    budget: int = 2_000
    """Transitions per chain that each training run may spend."""
    seeds: int = 3
    """Training runs of each method and step size."""

    def __post_init__(self) -> None:
        if self.chains < 100:
            raise ValueError(f"chains must be at least 100 for error bars, got {self.chains}")
        if self.truncation < 4 or self.truncation & (self.truncation - 1):
            raise ValueError(f"truncation must be a power of two from 4 on, got {self.truncation}")
        for name, least in (("budget", self.truncation), ("seeds", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


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


@dataclass(frozen=True)
class Scaling(Experiment):
    """Proposition 1: bias, second and third moment and cost against T, MLMC beside the average."""


@dataclass(frozen=True)
class Rates(Experiment):
    """Theorems 1 to 3: E‖∇V(θ_R)‖² against N, with the predicted slope and the evaluated bound."""


__all__ = ["Data", "Demo", "Experiment", "Preset", "Rates", "Scaling"]
