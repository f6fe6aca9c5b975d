"""Settings of `mlmcgrad demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mlmcgrad.experiments.settings import Experiment


@dataclass(frozen=True)
class Demo(Experiment):
    """Bias, variance and cost of a short chain, a long average and MLMC, where they are known."""

    files: ClassVar = ("demo.png", "demo.svg", "bias-cost.png", "bias-cost.svg")

    out: Path = Path("runs/demo")
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
        if self.truncation < 4 or self.truncation & (self.truncation - 1):
            raise ValueError(f"truncation must be a power of two ≥ 4, got {self.truncation}")
        if self.chains < 100:
            raise ValueError(f"chains must be ≥ 100 for error bars, got {self.chains}")
        for name, least in (("budget", self.truncation), ("seeds", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be ≥ {least}, got {getattr(self, name)}")
