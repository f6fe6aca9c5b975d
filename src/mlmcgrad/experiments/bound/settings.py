"""Settings of `mlmcgrad bound`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from mlmcgrad.experiments.settings import Experiment, Preset
from mlmcgrad.ranges import fraction, non_negative, number, positive, whole

_RULES = (
    ("G L beta gamma_scale truncation_scale epsilon clip delta accuracy", positive),
    ("gap zeta", non_negative),
    ("alpha rho1 rho2", fraction),
    ("gamma_exponent truncation_exponent", number),
)


@dataclass(frozen=True)
class Bound(Experiment):
    """The theorems for given numbers: constants, terms of the bound, rates, a plan.

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
    """α of the same, in [0, 1)."""
    beta: float = 0.5
    """β of the concentration inequality."""
    matrix: Path | None = None
    """File with a transition matrix, one row per line, from which ζ, α and β are computed instead;
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
    """Take b3 and the rates from the paper's text instead of the corrected ones."""
    accuracy: float | None = None
    """Wanted bound of E‖∇V(θ_R)‖²: adds the schedules, the N and the cost that reach it."""

    def __post_init__(self) -> None:
        whole(self.dimension, "dimension", 1, 2**53)
        for names, check in _RULES:
            for name in names.split():
                if getattr(self, name) is not None:
                    check(getattr(self, name), name)
