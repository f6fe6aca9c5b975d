"""What the theorems say about the runs of `rates`: constants, the bound, the rate."""

from __future__ import annotations

import dataclasses
import math

import torch

from mlmcgrad import theory
from mlmcgrad.experiments.rates.settings import GAMMA, OPTIONS, STAY, TRUNCATION, Name
from mlmcgrad.problems import sticky
from mlmcgrad.schedules import power
from mlmcgrad.theory.sums import EXACT

DIMENSION = 2
_LARGEST = 18  # powers of ten in which to look for a bound that says something
_METHODS: dict[Name, theory.Method] = {"sgd": "general", "adagrad": "adagrad", "amsgrad": "amsgrad"}


def constants() -> tuple[theory.Problem, dict[str, float]]:
    """The constants of the problem, for the theorems and by name.

    ζ = 1, α = a from the kernel; β from the matrix at any θ (only d̄(t) = a^t enters it).
    """
    problem = sticky(stay=STAY)
    matrix = problem.matrix(torch.zeros(1, DIMENSION, dtype=torch.float64))[0]
    chain = theory.Ergodicity(zeta=1.0, alpha=STAY, beta=theory.ergodicity(matrix).beta)
    c, smooth = theory.constants(DIMENSION, chain), problem.smoothness()
    names = {"zeta": chain.zeta, "alpha": chain.alpha, "beta": chain.beta}
    names |= dataclasses.asdict(c) | dataclasses.asdict(smooth)
    return theory.Problem(c, G=smooth.G, L=smooth.L, gap=smooth.gap), names


def bound(
    name: Name, alpha: float, N: list[int], problem: theory.Problem, exact: int = EXACT
) -> theory.Bound:
    """The theorem's bound at each N, with the settings of the run; `exact` as in `bounds`."""
    function = getattr(theory.bounds, _METHODS[name])
    schedules = {"gamma": GAMMA, "truncation": power(TRUNCATION, alpha)}
    return function(N, problem, **schedules, **OPTIONS[name], exact=exact)


def rate(name: Name, alpha: float) -> theory.Rate:
    """The corollary's order in N."""
    return getattr(theory.rates, _METHODS[name])(-GAMMA.exponent, alpha)


def shape(N: list[int], order: theory.Rate) -> list[float]:
    """N^exponent (log N)^log_power at each N."""
    return [n**order.exponent * math.log(n) ** order.log_power for n in N]


def informative_from(name: Name, alpha: float, problem: theory.Problem) -> int | None:
    """The first power of ten at which the bound is below ‖∇V‖² ≤ G², which needs no theorem."""
    N = [10**k for k in range(1, _LARGEST + 1)]
    total = bound(name, alpha, N, problem, exact=2**10).total  # integrated: nobody waits
    return next((n for n, value in zip(N, total, strict=True) if value < problem.G**2), None)
