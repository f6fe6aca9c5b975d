"""The runs of a reproduction: what each preset trains.

BR-IWAE runs N iterations; IWAE and the multilevel methods are cheaper and run `stretch` times as
many, so that budgets overlap. Nothing in a run depends on how long it will be (γ_n and T_n are
functions of n alone), so its first N iterations are those of a run of N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlmcgrad.experiments.reproduce.gather import RUNS
from mlmcgrad.experiments.reproduce.settings import Reproduce
from mlmcgrad.training.config import Config, Settings


@dataclass(frozen=True)
class Preset:
    """What a preset fills in; `train` are settings of `training.Config`."""

    dataset: str
    seeds: int
    iterations: int
    stretch: int
    train: Mapping[str, Any] = field(default_factory=dict)


PRESETS: dict[str, Preset] = {
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
    "cpu": Preset(
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
# Dearest first, so that the last runs to end are short.
_ORDER = ("br", "mlmc-rb", "mlmc", "iwae")


def filled(config: Reproduce) -> Reproduce:
    """The settings, with what the preset decides filled in."""
    preset = PRESETS[config.preset]
    names = ("dataset", "seeds", "iterations", "stretch")
    missing = {name: getattr(preset, name) for name in names if getattr(config, name) is None}
    device = config.device or _device(config.preset)
    return replace(config, out=config.folder, device=device, **missing)


def _device(preset: str) -> str:
    if preset != "paper":
        return "cpu"
    import torch  # late: nothing else here needs it

    return "cuda" if torch.cuda.is_available() else "cpu"


def training_runs(config: Reproduce) -> dict[str, Settings]:
    """Name → settings of every run, seed by seed.

    Args:
        config: settings, filled in.
    """
    assert config.seeds is not None
    return {
        f"{optimizer}-{method}-{seed}": _training_run(config, optimizer, method, seed)
        for seed in range(1, config.seeds + 1)
        for optimizer in config.optimizer
        for method in sorted(config.methods, key=_ORDER.index)
    }


def _training_run(config: Reproduce, optimizer: Any, method: str, seed: int) -> Settings:
    assert config.iterations is not None
    assert config.stretch is not None
    assert config.device is not None
    # Tests at N/8 · (1, √2, 2, …): one of them is at N.
    grid = {"evaluate_grid": "geometric", "evaluate_every": config.iterations // 8}
    settings: dict[str, Any] = {**grid, **PRESETS[config.preset].train}
    return Config(
        dataset=config.dataset,  # type: ignore[arg-type]  # filled in
        method="mlmc" if method == "mlmc-rb" else method,  # type: ignore[arg-type]
        rao_blackwell=method == "mlmc-rb",
        optimizer=optimizer,
        iterations=config.iterations * (1 if method == "br" else config.stretch),
        seed=seed,
        out=config.folder / RUNS / f"{optimizer}-{method}-{seed}",
        resume=True,
        device=config.device,
        **settings,
    ).settings()


__all__ = ["PRESETS", "Preset", "filled", "training_runs"]
