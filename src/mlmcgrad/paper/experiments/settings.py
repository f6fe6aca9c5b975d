"""The options of each experiment's command, as dataclasses; `reproduce` has its own.

No module of settings imports torch, so that `mlmcgrad --help` answers at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

import tyro

from mlmcgrad._checks import fraction, non_negative, number, positive, whole

SEEDS = 2**53
"""Seeds are below this: generators are seeded by 1000 times as much, and torch takes 64 bits."""
JOBS = 1024
"""Largest number of processes side by side: each of them loads torch."""
_LARGEST = 2**53  # integers up to here are exact in double precision
_DASK = re.compile(r"local:[1-9]\d{0,3}|[a-z]+://\S+|[^\s:]+:\d+")

Preset: TypeAlias = Literal["smoke", "quick", "full"]
"""`smoke`: seconds, for tests. `quick`: minutes. `full`: as long as a good figure takes."""


@dataclass(frozen=True)
class Experiment:
    """Settings of every experiment."""

    files: ClassVar[tuple[str, ...]] = ()  # what it writes besides the files of every run

    out: Path = Path("runs")
    """Run folder."""
    force: bool = False
    """Move an earlier run in the folder aside, into old-1, old-2, …; nothing is deleted."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Settings of experiments that are grids of independent runs."""

    jobs: int = 2
    """Processes to run side by side on this machine."""
    dask: str = ""
    """Run on a Dask cluster instead: the address of its scheduler, such as tcp://host:8786, or
    local:4 to start 4 workers on this machine."""

    def check(self) -> None:
        """Raise if there are too many processes, or if `dask` is no address."""
        whole(self.jobs, "jobs", 1, JOBS)
        if self.dask and not _DASK.fullmatch(self.dask):
            raise ValueError(
                f"dask must be HOST:PORT, tcp://HOST:PORT or local:N, got {self.dask!r}"
            )


@dataclass(frozen=True)
class SimulationSettings(Grid, Experiment):
    """Settings of experiments that simulate for minutes, in parts that are saved one by one."""

    preset: Preset = "quick"
    """How much to compute: smoke (seconds), quick (minutes), full (longer)."""
    seed: int = 0
    """Seed of everything random."""
    resume: bool = False
    """Continue the run in the folder, or start if there is none."""

    def __post_init__(self) -> None:
        whole(self.seed, "seed", 0, SEEDS)
        self.check()


@dataclass(frozen=True)
class DemoSettings(Experiment):
    """Measure bias, variance and cost where the exact gradient is known."""

    files: ClassVar = ("demo.png", "demo.svg", "bias-cost.png", "bias-cost.svg")

    out: Path = Path("runs/demo")
    seed: int = 0
    """Seed of all random numbers."""
    chains: int = 20_000
    """Independent estimates of each method, from which bias and variance are measured."""
    truncation: int = 64
    """Chain length T of the long average, and truncation of MLMC; a power of two."""
    budget: int = 2_000
    """Transitions per chain that each training run may spend."""
    seeds: int = 3
    """Training runs of each method and step size."""

    def __post_init__(self) -> None:
        whole(self.seed, "seed", 0, SEEDS)
        whole(self.chains, "chains", 100, _LARGEST)  # fewer have no error bars
        whole(self.truncation, "truncation", 4, _LARGEST)
        if self.truncation & (self.truncation - 1):
            raise ValueError(f"truncation must be a power of two ≥ 4, got {self.truncation}")
        whole(self.budget, "budget", self.truncation, _LARGEST)
        whole(self.seeds, "seeds", 1, _LARGEST)


@dataclass(frozen=True)
class ScalingSettings(SimulationSettings):
    """Measure bias, moments and cost against T, as in Proposition 1."""

    files: ClassVar = ("scaling.png", "scaling.svg")

    out: Path = Path("runs/scaling")


@dataclass(frozen=True)
class RatesSettings(SimulationSettings):
    """Measure convergence against the rates of Theorems 1 to 3."""

    files: ClassVar = ("rates.png", "rates.svg")

    out: Path = Path("runs/rates")


@dataclass(frozen=True)
class BoundSettings(Experiment):
    """Evaluate the bounds of the theorems for your constants.

    γ_n = gamma-scale · n^(−gamma-exponent), T_n = truncation-scale · n^truncation-exponent.
    """

    files: ClassVar = ("bound.png", "bound.svg")

    out: Path = Path("runs/bound")
    preset: Preset = "quick"
    """Largest N: 10^4 (smoke), 10^10 (quick) or 10^15 (full)."""
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
    """α of TV(P^i(x,·), π) ≤ ζ α^i, in [0, 1)."""
    beta: float = 0.5
    """β of the concentration inequality."""
    matrix: Path | None = None
    """File with a transition matrix from which ζ, α and β are computed instead: one row per line,
    numbers separated by spaces or commas."""
    gamma_scale: float = 0.1
    """Step size at n = 1."""
    gamma_exponent: float = 0.5
    """How fast the step sizes fall."""
    truncation_scale: float = 2.0
    """T_1, at least 1."""
    truncation_exponent: float = 0.5
    """How fast T_n grows; 0 for a constant T."""
    epsilon: float = 1.0
    """Adagrad: largest eigenvalue ε of the preconditioner."""
    clip: float = 1.0
    """Adagrad, AMSGrad: threshold M at which the entries of a gradient are clipped."""
    rho1: float = 0.9
    """AMSGrad: memory of the momentum."""
    rho2: float = 0.999
    """AMSGrad: memory of the squares."""
    delta: float = 1.0
    """AMSGrad: δ inside the root."""
    as_printed: bool = False
    """Take b3 and the rates as the paper prints them, without our corrections."""
    accuracy: float | None = None
    """Target for the bound of E‖∇V(θ_R)‖²: adds the schedules, the N and the cost that reach it."""

    def __post_init__(self) -> None:
        whole(self.dimension, "dimension", 1, _LARGEST)
        for names, check in (
            ("G L beta gamma_scale truncation_scale epsilon clip delta accuracy", positive),
            ("gap zeta", non_negative),
            ("alpha rho1 rho2", fraction),
            ("gamma_exponent truncation_exponent", number),
        ):
            for name in names.split():
                if getattr(self, name) is not None:
                    check(getattr(self, name), name)


@dataclass(frozen=True)
class PlanSettings:
    """Choose the gradient of a training from its last checkpoint."""

    files: ClassVar = ("plan.png", "plan.svg", "compare.png", "compare.svg")

    run: tyro.conf.Positional[Path]
    """Folder of the training."""
    budget: float = 1e6
    """Evaluations of the decoder that the training will spend on this gradient."""
    simulations: int | None = None
    """Minimum number of simulations that share the budget; by default 200 batches of the training,
    but not more than budget / (4 · candidates)."""
    rows: int = 64
    """Number of training images to simulate, chosen at random."""
    pilot: float = 50_000.0
    """Evaluations of each pilot, and of each gradient in the comparison; more give smaller error
    bars and take longer."""
    seed: int = 0
    """Seed of all random numbers."""
    out: Path | None = None
    """Folder for the numbers and figures; by default the folder plan in that of the training."""
    force: bool = False
    """Move an earlier run in the folder aside, into old-1, old-2, …; nothing is deleted."""

    def __post_init__(self) -> None:
        for name, most in (("budget", 1e15), ("pilot", 1e9)):  # years, days
            if not 1.0 <= number(getattr(self, name), name) <= most:
                value = getattr(self, name)
                raise ValueError(f"{name} must be from 1 to {most:.0e}, got {value!r}")
        if self.simulations is not None:
            whole(self.simulations, "simulations", 1, _LARGEST)
        whole(self.rows, "rows", 1, 2**20)
        whole(self.seed, "seed", 0, SEEDS)

    @property
    def folder(self) -> Path:
        """Folder for the numbers and figures."""
        return self.run / "plan" if self.out is None else self.out


Pictures: TypeAlias = Literal["bars", "digits"]
"""Data of `boltzmann`."""


@dataclass(frozen=True)
class BoltzmannSettings(SimulationSettings):
    """Train Boltzmann machines by CD, PCD, UCD and multilevel gradients."""

    files: ClassVar = ("boltzmann.png", "boltzmann.svg", "samples.png", "samples.svg", "table.md")

    out: Path = Path("runs/boltzmann")
    data: tuple[Pictures, ...] = ("bars", "digits")
    """Bars and stripes 4×4 (32 rows), and the digits of scikit-learn in black and white."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data or len(set(self.data)) < len(self.data):
            raise ValueError(f"data must name each choice once, got {' '.join(self.data)!r}")
