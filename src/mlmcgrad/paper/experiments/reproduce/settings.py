"""Settings of `mlmcgrad reproduce` and `mlmcgrad report`, and the training runs of each preset.

`Reproduce` and `ReportSettings` hold the options as the command line takes them,
`ReproduceSettings` adds the values of the preset. Nothing here imports torch, so that
`mlmcgrad --help` answers at once.

BR-IWAE runs N iterations; the other methods are cheaper and run `stretch` times as many, so that
budgets overlap. γ_n and T_n are functions of n alone, so the first N iterations of a longer run are
those of a run of N.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import tyro

from mlmcgrad._checks import whole
from mlmcgrad.paper.experiments.settings import Grid
from mlmcgrad.paper.training import config as training

PresetName: TypeAlias = Literal["smoke", "minute", "quick", "full", "paper"]
DatasetChoice: TypeAlias = Literal["digits", "mnist", "cifar10"]
OptimizerChoice: TypeAlias = Literal["amsgrad", "adagrad"]
MethodChoice: TypeAlias = Literal["iwae", "dreg", "jsa", "br", "mlmc", "mlmc-rb", "mlmc-is"]

RUNS = "runs"
FILES = ("report.html", "claims.md", "figures")  # of a report
# In the order in which methods and optimizers are always shown.
LABELS = {
    "iwae": "IWAE",
    "dreg": "IWAE-DReG",
    "jsa": "JSA",
    "br": "BR-IWAE",
    "mlmc": "MLMC-IWAE",
    "mlmc-rb": "RB-MLMC-IWAE",
    "mlmc-is": "IS-MLMC-IWAE",
}
OPTIMIZERS = {"amsgrad": "AMSGrad", "adagrad": "Adagrad"}
# Name, minimum and maximum. Each seed adds a folder per method and optimizer; iterations × stretch
# stays below 2^53, the limit of a training.
_RANGES = (("seeds", 1, 1000), ("iterations", 16, 2**31), ("stretch", 1, 2**20))


@dataclass(frozen=True)
class Reproduce(Grid):
    """Reproduce Section 5 of the paper: its claims, and a report."""

    preset: PresetName = "quick"
    """smoke: digits, seconds. minute: digits, br and mlmc with AMSGrad, under a minute on 2 cores.
    quick: digits, all methods, 10 minutes. full: CIFAR-10, about an hour. paper: CIFAR-10 as in
    Section 5, 200 epochs and 5 seeds."""
    dataset: DatasetChoice | None = None
    """Images to train on; by default those of the preset."""
    optimizer: tuple[OptimizerChoice, ...] | None = None
    """Optimizers; both by default, except for the preset minute."""
    methods: tuple[MethodChoice, ...] | None = None
    """Methods to train; all by default, except for the preset minute. In the paper: iwae, br, mlmc.
    Beyond it: mlmc-rb, Rao-Blackwellised; mlmc-is, levels of importance sampling; dreg, IWAE with
    the doubly reparameterised gradient; jsa, persistent chains. Claims compare them with br, iwae
    and dreg."""
    seeds: int | None = None
    """Number of runs per method and optimizer, with the seeds 1, 2, …; by default the preset's."""
    out: Path | None = None
    """Folder for the runs and the report; by default runs/reproduce- and the preset."""
    resume: bool = False
    """Resume the reproduction in the folder, or start one if the folder is empty."""
    force: bool = False
    """Move an earlier run in the folder aside, into old-1, old-2, …; with --resume only damaged
    metrics.jsonl files. Nothing is deleted."""
    iterations: int | None = None
    """Iterations of br; by default the preset's."""
    stretch: int | None = None
    """The other methods, whose iterations cost less, run this many times as many iterations."""
    device: str | None = None
    """Device to train on: cpu, cuda, …; by default cpu, for the preset paper cuda if available."""

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            if getattr(self, name) is not None:
                whole(getattr(self, name), name, least, most)
        for name in ("optimizer", "methods"):
            values = getattr(self, name)
            if values is None:
                continue
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must name each choice once, got {' '.join(values)!r}")
        self.check()

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or Path("runs") / f"reproduce-{self.preset}"


@dataclass(frozen=True)
class ReportSettings:
    """Build the report of a reproduction from its run folders; several are shown side by side."""

    files: ClassVar = FILES

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders written by `mlmcgrad reproduce`."""
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
        """The folder of the report."""
        return self.out or (self.folders[0] if len(self.folders) == 1 else Path("runs/report"))


@dataclass(frozen=True, kw_only=True)
class ReproduceSettings(Reproduce):
    """Settings of a reproduction, with the values of its preset filled in."""

    dataset: DatasetChoice
    optimizer: tuple[OptimizerChoice, ...]
    methods: tuple[MethodChoice, ...]
    seeds: int
    iterations: int
    stretch: int
    device: str


# `train` holds settings of `training.Config`.
PRESETS: dict[PresetName, dict[str, Any]] = {
    "smoke": {
        "dataset": "digits",
        "seeds": 2,
        "iterations": 16,
        "stretch": 2,
        "train": {
            "batch_size": 10,
            "nll_samples": 10,
            "test_images": 20,
            "log_every": 4,
            "probe_images": 30,
            "probe_length": 2,
            "probe_repeats": 3,
        },
    },
    "minute": {
        "dataset": "digits",
        "optimizer": ("amsgrad",),
        "methods": ("br", "mlmc"),
        "seeds": 2,
        "iterations": 320,
        "stretch": 4,
        "train": {"test_images": 100, "probe_images": 500, "probe_length": 4, "probe_repeats": 3},
    },
    "quick": {
        "dataset": "digits",
        "seeds": 3,
        "iterations": 640,
        "stretch": 4,
        "train": {"test_images": 100, "probe_images": 1500, "probe_length": 4, "probe_repeats": 3},
    },
    # Small batches: more iterations, and longer chains T_n, in the same time.
    "full": {
        "dataset": "cifar10",
        "seeds": 3,
        "iterations": 576,
        "stretch": 3,
        "train": {
            "batch_size": 32,
            "test_images": 32,
            "log_every": 8,
            "probe_images": 256,
            "probe_length": 8,
            "probe_repeats": 8,
        },
    },
    # 200 epochs of 391 batches; the paper does not state its batch size.
    "paper": {
        "dataset": "cifar10",
        "seeds": 5,
        "iterations": 200 * 391,
        "stretch": 1,
        "train": {
            "batch_size": 128,
            "test_images": 10_000,
            "log_every": 100,
            "probe_images": 2048,
            "probe_length": 8,
            "probe_repeats": 8,
            "evaluate_grid": "even",
            "evaluate_every": 10 * 391,
        },
    },
}
# The most expensive method comes first, so that the last runs to end are short.
METHODS: dict[MethodChoice, dict[str, Any]] = {
    "br": {"method": "br"},
    "mlmc-rb": {"method": "mlmc", "rao_blackwell": True},
    "mlmc": {"method": "mlmc"},
    "mlmc-is": {"method": "mlmc", "kernel": "importance", "estimator": "sum"},
    "jsa": {"method": "iwae", "persistent": True, "encoder": "wake"},
    "dreg": {"method": "iwae", "encoder": "dreg"},
    "iwae": {"method": "iwae"},
}


def decide(options: Reproduce) -> ReproduceSettings:
    """Fill in the preset's value for each option that was not given."""
    preset: dict[str, Any] = {
        "optimizer": get_args(OptimizerChoice),
        "methods": get_args(MethodChoice),
        "device": _device(options.preset),
        **PRESETS[options.preset],
    }
    given = {name: value for name, value in vars(options).items() if value is not None}
    return ReproduceSettings(**{k: v for k, v in preset.items() if k != "train"} | given)


def _device(preset: PresetName) -> str:
    if preset != "paper":
        return "cpu"
    import torch  # late: nothing else here needs it

    return "cuda" if torch.cuda.is_available() else "cpu"


def training_runs(settings: ReproduceSettings) -> dict[str, training.Settings]:
    """Return the settings of every training run by name, seed by seed."""
    # Tests at N/8 · (1, √2, 2, …): one of them is at N.
    grid = {"evaluate_grid": "geometric", "evaluate_every": settings.iterations // 8}
    return {
        f"{optimizer}-{method}-{seed}": training.Config.from_flat(
            dataset=settings.dataset,
            optimizer=optimizer,
            iterations=settings.iterations * (1 if method == "br" else settings.stretch),
            seed=seed,
            out=settings.folder / RUNS / f"{optimizer}-{method}-{seed}",
            resume=True,
            force=settings.force,  # with resume: only what is damaged
            device=settings.device,
            **{**grid, **PRESETS[settings.preset]["train"], **own},
        ).settings()
        for seed in range(1, settings.seeds + 1)
        for optimizer in settings.optimizer
        for method, own in METHODS.items()
        if method in settings.methods
    }
