"""Settings of `mlmcgrad demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mlmcgrad.experiments.settings import SEEDS, Experiment
from mlmcgrad.ranges import whole

TRANSITIONS = 10**10
"""Most transitions of all chains together: hours, at a million a second."""
_MOST = 2**53  # as far as numbers count exactly in double precision
_TRAINED = 192  # chains that each seed trains with: 32 for each of 3 methods and 2 step sizes


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
        whole(self.seed, "seed", 0, SEEDS)
        whole(self.chains, "chains", 100, _MOST)  # fewer have no error bars
        whole(self.truncation, "truncation", 4, _MOST)
        if self.truncation & (self.truncation - 1):
            raise ValueError(f"truncation must be a power of two ≥ 4, got {self.truncation}")
        whole(self.budget, "budget", self.truncation, _MOST)
        whole(self.seeds, "seeds", 1, _MOST)
        for names, count in (
            ("chains truncation", self.chains * self.truncation),
            ("budget seeds", self.budget * self.seeds * _TRAINED),
        ):
            if count > TRANSITIONS:
                name = max(names.split(), key=lambda n: getattr(self, n) / getattr(Demo, n))
                raise ValueError(
                    f"{name} must be lower, got {getattr(self, name)}: the chains would make "
                    f"{count:.3g} transitions, the limit is {TRANSITIONS:.0e}"
                )
