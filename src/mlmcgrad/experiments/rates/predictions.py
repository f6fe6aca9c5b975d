"""What the theorems say about the runs of `rates`: constants, the bound, the predicted slope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mlmcgrad import theory
from mlmcgrad.experiments.rates import run
from mlmcgrad.experiments.rates.run import Name
from mlmcgrad.problems import sticky
from mlmcgrad.schedules import power
from mlmcgrad.theory import bounds, rates
from mlmcgrad.theory.sums import EXACT

DIMENSION = 2
_LARGEST = 18  # powers of ten in which to look for a bound that says something


@dataclass(frozen=True)
class Setting:
    """The constants of the problem."""

    problem: theory.Problem
    ergodicity: theory.Ergodicity
    lowest: float

    def record(self) -> dict[str, float]:
        """The constants by name, for the summary."""
        e, p = self.ergodicity, self.problem
        c = p.constants
        return {
            "d": c.d,
            "zeta": e.zeta,
            "alpha": e.alpha,
            "beta": e.beta,
            "c1": c.c1,
            "c2": c.c2,
            "c3": c.c3,
            "G": p.G,
            "L": p.L,
            "lowest": self.lowest,
            "gap": p.gap,
        }


def setting() -> Setting:
    """ζ = 1, α = a from the kernel; β from the matrix at any θ (only d̄(t) = a^t enters it)."""
    problem = sticky(stay=run.STAY)
    found = theory.ergodicity(problem.matrix(torch.zeros(1, DIMENSION, dtype=torch.float64))[0])
    ergodicity = theory.Ergodicity(zeta=1.0, alpha=run.STAY, beta=found.beta)
    smooth = problem.smoothness()
    constants = theory.constants(DIMENSION, ergodicity)
    return Setting(
        theory.Problem(constants, G=smooth.G, L=smooth.L, gap=smooth.gap), ergodicity, smooth.lowest
    )


def bound(
    name: Name, alpha: float, N: list[int], problem: theory.Problem, exact: int = EXACT
) -> theory.Bound:
    """The theorem's bound at each N, with the settings of the run; `exact` as in `bounds`."""
    schedules: dict[str, Any] = {"gamma": run.GAMMA, "truncation": power(run.TRUNCATION, alpha)}
    if name == "sgd":
        return bounds.general(N, problem, **schedules, exact=exact)
    if name == "adagrad":
        return bounds.adagrad(N, problem, **schedules, **run.ADAGRAD, exact=exact)
    return bounds.amsgrad(N, problem, **schedules, **run.AMSGRAD, exact=exact)


def rate(name: Name, alpha: float) -> theory.Rate:
    """The corollary's order in N."""
    gamma = -run.GAMMA.exponent
    if name == "sgd":
        return rates.general(gamma, alpha)
    return rates.adagrad(gamma, alpha) if name == "adagrad" else rates.amsgrad(gamma, alpha)


def informative_from(name: Name, alpha: float, problem: theory.Problem) -> int | None:
    """The first power of ten at which the bound is below ‖∇V‖² ≤ G², which needs no theorem."""
    N = [10**k for k in range(1, _LARGEST + 1)]
    total = bound(name, alpha, N, problem, exact=2**10).total  # integrated: nobody waits
    return next((n for n, value in zip(N, total, strict=True) if value < problem.G**2), None)


def slope(N: list[int], values: list[float]) -> float:
    """Slope of log values against log N, by least squares.

    Example:
        >>> round(slope([10, 100, 1000], [3.0, 0.3, 0.03]), 12)
        -1.0
    """
    return float(np.polyfit(np.log(N), np.log(values), 1)[0])


def shape(N: list[int], order: theory.Rate) -> list[float]:
    """N^exponent (log N)^log_power at each N."""
    return [n**order.exponent * float(np.log(n)) ** order.log_power for n in N]


__all__ = ["DIMENSION", "Setting", "bound", "informative_from", "rate", "setting", "shape", "slope"]
