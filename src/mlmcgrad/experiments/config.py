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


@dataclass(frozen=True)
class Bound(Experiment):
    """The theorems for given numbers: constants, terms of the bound, rates, a plan.

    Nothing is simulated: seed and jobs do not matter here. γ_n = gamma-scale · n^(−gamma-exponent),
    T_n = truncation-scale · n^truncation-exponent.
    """

    optimizer: Literal["sgd", "adagrad", "amsgrad"] = "sgd"
    """Which theorem: plain stochastic gradient, Adagrad or AMSGrad."""
    dimension: int = 2
    """Dimension d of the gradient."""
    G: float = 1.0
    """Bound of the Euclidean norm of H."""
    L: float = 1.0
    """Lipschitz constant of ∇V."""
    gap: float = 1.0
    """E V(θ_0) − min V."""
    zeta: float = 1.0
    """ζ of TV(P^i(x,·), π) ≤ ζ α^i."""
    alpha: float = 0.5
    """α of the same, in [0, 1)."""
    beta: float = 0.5
    """β of the concentration inequality."""
    matrix: Path | None = None
    """File with a transition matrix, one row a line, from which ζ, α and β are computed instead;
    numbers are separated by spaces or commas."""
    gamma_scale: float = 0.1
    """Step size at n = 1."""
    gamma_exponent: float = 0.5
    """How fast the step sizes fall."""
    truncation_scale: float = 2.0
    """T_1, at least 1."""
    truncation_exponent: float = 0.5
    """How fast T_n grows; 0 for a constant T."""
    epsilon: float = 1.0
    """Adagrad: largest eigenvalue ε of the preconditioner. AMSGrad: clipping ε of the squares."""
    clip: float = 1.0
    """Adagrad: clipping threshold M."""
    rho1: float = 0.9
    """AMSGrad: memory of the momentum."""
    rho2: float = 0.999
    """AMSGrad: memory of the squares."""
    delta: float = 1.0
    """AMSGrad: δ inside the root."""
    as_printed: bool = False
    """Take b3 and the rates from the paper's text instead of the corrected ones."""
    accuracy: float | None = None
    """Wanted bound of E‖∇V(θ_R)‖²: adds the schedules, the N and the cost that reach it."""


OptimizerChoice: TypeAlias = Literal["amsgrad", "adagrad"]
MethodChoice: TypeAlias = Literal["iwae", "br", "mlmc", "mlmc-rb"]


@dataclass(frozen=True)
class Reproduce:
    """Section 5 of the paper: its figures and its claims, measured, as one report."""

    preset: Literal["smoke", "quick", "cpu", "paper"] = "quick"
    """smoke: seconds. quick: digits, minutes. cpu: CIFAR-10, about an hour on 2 cores. paper:
    CIFAR-10 as in Section 5; how many hours is said before it starts."""
    dataset: Literal["digits", "cifar10"] | None = None
    """Images to train on, if not those of the preset."""
    optimizer: tuple[OptimizerChoice, ...] = ("amsgrad", "adagrad")
    """Optimizers, one or both."""
    methods: tuple[MethodChoice, ...] = ("iwae", "br", "mlmc", "mlmc-rb")
    """Methods; claims compare mlmc and mlmc-rb (Rao-Blackwellised) with br."""
    seeds: int | None = None
    """Runs of each method and optimizer, with the seeds 1, 2, …"""
    jobs: int = 2
    """Runs side by side, each with one thread."""
    out: Path | None = None
    """Folder for the runs and the report; by default runs/reproduce- and the preset."""
    resume: bool = False
    """Continue what is in the folder, or start if there is nothing."""
    iterations: int | None = None
    """Iterations of br, if not those of the preset."""
    stretch: int | None = None
    """The other methods run this many times as many; what they cost is still less."""
    device: str | None = None
    """Where to compute: cpu, cuda, …; by default cpu, for the preset paper cuda where there is one.
    """

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("jobs", 1), ("iterations", 16), ("stretch", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name in ("optimizer", "methods"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must name each choice once, got {' '.join(values)!r}")

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        return self.out or Path("runs") / f"reproduce-{self.preset}"


@dataclass(frozen=True)
class Report:
    """Build the report of a reproduction again from its run folders; several stand side by side."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders that `mlmcgrad reproduce` has written."""
    out: Path | None = None
    """Folder for report.html, summary.json and figures; by default the folder itself, or
    runs/report for several."""

    def __post_init__(self) -> None:
        if not self.folders:
            raise ValueError("folders must name at least one reproduction, got none")

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        return self.out or (self.folders[0] if len(self.folders) == 1 else Path("runs/report"))


__all__ = [
    "Bound",
    "Data",
    "Demo",
    "Experiment",
    "Preset",
    "Rates",
    "Report",
    "Reproduce",
    "Scaling",
]
