"""Settings of `mlmcgrad rates`, and the numbers that all its runs share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from mlmcgrad.experiments.settings import Preset, Simulation
from mlmcgrad.schedules import power

Name: TypeAlias = Literal["sgd", "adagrad", "amsgrad"]

ALPHAS = (0.0, 0.25, 0.5, 1.0)
STAY = 0.7  # the chain forgets in about 3 steps: an average of two leaves a bias that can be seen
START = 2  # the state from which that bias leaves the largest gradient of V
TRUNCATION = 2.0  # T_1; also T_n for every n when α = 0
# Chosen after trials: with c = 0.2 and N = 20 000 the runs with α = 1 had slopes of -0.26 to -0.28
# for a predicted -0.27, equal within the error; smaller steps have less noise and fall faster.
GAMMA = power(0.1, -0.5)
OPTIONS: dict[Name, dict[str, Any]] = {
    "sgd": {},
    # ε_1 of the order 1/M, or the first iterate would carry most of the weight of R.
    "adagrad": {"epsilon": 1.0, "clip": 2.0},
    "amsgrad": {"rho1": 0.9, "rho2": 0.999, "delta": 1.0, "clip": 2.0},
}
"""What each optimizer takes besides γ_n, and its bound besides γ_n and T_n."""

# The largest N, and replicas.
EFFORT: dict[Preset, tuple[int, int]] = {
    "smoke": (60, 16),
    "quick": (15_000, 128),
    "full": (200_000, 256),
}


@dataclass(frozen=True)
class Rates(Simulation):
    """Theorems 1 to 3: E‖∇V(θ_R)‖² against N, with the predicted slope and the evaluated bound."""

    files: ClassVar = ("rates.png", "rates.svg")

    out: Path = Path("runs/rates")
