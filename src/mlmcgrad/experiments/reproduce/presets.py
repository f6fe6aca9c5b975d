"""The runs of a reproduction: what each preset trains.

BR-IWAE runs N iterations; IWAE and the multilevel methods are cheaper and run `stretch` times as
many, so that budgets overlap. Nothing in a run depends on how long it will be (γ_n and T_n are
functions of n alone), so its first N iterations are those of a run of N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlmcgrad.experiments.reproduce.gather import RUNS
from mlmcgrad.experiments.reproduce.settings import (
    DatasetChoice,
    MethodChoice,
    OptimizerChoice,
    PresetName,
    Reproduce,
)
from mlmcgrad.training import config as training


@dataclass(frozen=True)
class Preset:
    """What a preset decides; `train` are settings of `training.Config`."""

    dataset: DatasetChoice
    seeds: int
    iterations: int
    stretch: int
    train: Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """A reproduction, with everything decided."""

    preset: PresetName
    dataset: DatasetChoice
    optimizer: tuple[OptimizerChoice, ...]
    methods: tuple[MethodChoice, ...]
    seeds: int
    jobs: int
    iterations: int
    stretch: int
    device: str
    resume: bool
    force: bool
    join: bool
    folder: Path


PRESETS: dict[PresetName, Preset] = {
    "smoke": Preset(
        "digits",
        seeds=2,
        iterations=16,
        stretch=2,
        train={
            "batch_size": 10,
            "nll_samples": 10,
            "test_images": 20,
            "log_every": 4,
            "probe_images": 30,
            "probe_length": 2,
            "probe_repeats": 3,
        },
    ),
    "quick": Preset(
        "digits",
        seeds=3,
        iterations=640,
        stretch=4,
        train={"test_images": 100, "probe_images": 1500, "probe_length": 4, "probe_repeats": 3},
    ),
    # Small batches: more iterations, and longer chains T_n, for the same time.
    "full": Preset(
        "cifar10",
        seeds=3,
        iterations=576,
        stretch=3,
        train={
            "batch_size": 32,
            "test_images": 32,
            "log_every": 8,
            "probe_images": 256,
            "probe_length": 8,
            "probe_repeats": 8,
        },
    ),
    # 200 epochs of 391 batches; the paper does not say how large its batches are.
    "paper": Preset(
        "cifar10",
        seeds=5,
        iterations=200 * 391,
        stretch=1,
        train={
            "batch_size": 128,
            "test_images": 10_000,
            "log_every": 100,
            "probe_images": 2048,
            "probe_length": 8,
            "probe_repeats": 8,
            "evaluate_grid": "even",
            "evaluate_every": 10 * 391,
        },
    ),
}
# What is trained. The most expensive one comes first, so that the last runs to end are short.
_METHODS: dict[MethodChoice, dict[str, Any]] = {
    "br": {"method": "br"},
    "mlmc-rb": {"method": "mlmc", "rao_blackwell": True},
    "mlmc": {"method": "mlmc"},
    "mlmc-is": {"method": "mlmc", "kernel": "importance", "estimator": "sum"},
    "jsa": {"method": "iwae", "persistent": True, "encoder": "wake"},
    "dreg": {"method": "iwae", "encoder": "dreg"},
    "iwae": {"method": "iwae"},
}


def decide(options: Reproduce) -> Settings:
    """The options, with the preset's choice for each that was left open."""
    preset = PRESETS[options.preset]
    return Settings(
        preset=options.preset,
        dataset=options.dataset or preset.dataset,
        optimizer=options.optimizer,
        methods=options.methods,
        seeds=options.seeds or preset.seeds,
        jobs=options.jobs,
        iterations=options.iterations or preset.iterations,
        stretch=options.stretch or preset.stretch,
        device=options.device or _device(options.preset),
        resume=options.resume or options.join,
        force=options.force,
        join=options.join,
        folder=options.folder,
    )


def _device(preset: PresetName) -> str:
    if preset != "paper":
        return "cpu"
    import torch  # late: nothing else here needs it

    return "cuda" if torch.cuda.is_available() else "cpu"


def training_runs(settings: Settings) -> dict[str, training.Settings]:
    """Name → settings of every run, seed by seed."""
    return {
        f"{optimizer}-{method}-{seed}": _training_run(settings, optimizer, method, seed)
        for seed in range(1, settings.seeds + 1)
        for optimizer in settings.optimizer
        for method in _METHODS
        if method in settings.methods
    }


def _training_run(
    settings: Settings, optimizer: OptimizerChoice, method: MethodChoice, seed: int
) -> training.Settings:
    # Tests at N/8 · (1, √2, 2, …): one of them is at N.
    grid = {"evaluate_grid": "geometric", "evaluate_every": settings.iterations // 8}
    train: dict[str, Any] = {**grid, **PRESETS[settings.preset].train, **_METHODS[method]}
    return training.Config(
        dataset=settings.dataset,
        optimizer=optimizer,
        iterations=settings.iterations * (1 if method == "br" else settings.stretch),
        seed=seed,
        out=settings.folder / RUNS / f"{optimizer}-{method}-{seed}",
        resume=True,
        force=settings.force,  # with resume: only what is damaged
        device=settings.device,
        **train,
    ).settings()
