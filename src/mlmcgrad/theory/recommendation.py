"""Schedules that the theory recommends for a wanted accuracy, and what they cost.

The corollaries give the best exponent of N at γ = 1/2 with constant λ̲, λ̄, ε, M, for every
truncation exponent 1/2 ≤ α ≤ 1: (log N)²/√N. The rate does not say which α is best, nor which
scales of γ_n = c n^{−1/2} and T_n = C n^α; the bound does. As a function of c it is A/c + B + D·c,
so the best c is √(A/D). For each (α, C) doubling and bisection give the smallest N with
bound ≤ accuracy, and the pair with the fewest expected chain steps Σ (κ_n + 2^{-κ_n}) is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mlmcgrad.ranges import positive, whole
from mlmcgrad.schedules import Power
from mlmcgrad.theory import bounds, rates
from mlmcgrad.theory.cost import average_cost, expected_cost, level
from mlmcgrad.theory.rates import Rate
from mlmcgrad.theory.terms import Bound, Problem

Method = Literal["general", "adagrad", "amsgrad"]

_BOUNDS: dict[str, Callable[..., Bound]] = {
    "general": bounds.general,
    "adagrad": bounds.adagrad,
    "amsgrad": bounds.amsgrad,
}
_RATES: dict[str, Callable[[float, float], Rate]] = {
    "general": rates.general,
    "adagrad": rates.adagrad,
    "amsgrad": rates.amsgrad,
}
_EXACT = 2**10  # the search needs many bounds: integrate early
ALPHAS = (0.5, 0.75, 1.0)
SCALES = tuple(4.0**k for k in range(10))


@dataclass(frozen=True)
class Plan:
    """Schedules that bring the bound of E‖∇V(θ_R)‖² to the wanted accuracy."""

    method: Method
    accuracy: float
    gamma: Power
    """γ_n = c n^{−1/2}."""
    truncation: Power
    """T_n = C n^α."""
    rate: Rate
    iterations: int
    """Smallest N at which the bound, with the best c for that N, is at most the accuracy."""
    bound: float
    terms: dict[str, float]
    expected_cost: float
    """Σ (κ_n + 2^{-κ_n}): chain steps of the multilevel estimator, on average."""
    longest_chain: int
    """2^{κ_N}: the longest chain that can occur."""
    average_cost: float
    """Σ 2^{κ_n}: chain steps of the plain averages with the same bias."""

    @property
    def saving(self) -> float:
        """Chain steps of the plain averages with the same bias, for one of the multilevel ones."""
        return self.average_cost / self.expected_cost


class UnreachableError(ValueError):
    """No schedule reaches the wanted accuracy within the allowed iterations."""


def recommend(
    accuracy: float,
    problem: Problem,
    method: Method = "general",
    *,
    alphas: Sequence[float] = ALPHAS,
    scales: Sequence[float] = SCALES,
    max_iterations: int = 10**15,
    **settings: float,
) -> Plan:
    """Schedules, iterations and chain steps for a wanted accuracy.

    Args:
        accuracy: wanted bound of E‖∇V(θ_R)‖².
        problem: constants, G, L, gap.
        method: which theorem.
        alphas: exponents of T_n to choose from.
        scales: values C ≥ 1 of T_1 to choose from.
        max_iterations: largest N to consider.
        **settings: constants of the method, passed on to its bound: lower, upper (general);
            epsilon, clip (adagrad); rho1, rho2, delta, clip (amsgrad).

    Returns:
        The plan with the smallest expected cost.

    Raises:
        UnreachableError: no candidate reaches the accuracy within max_iterations.

    Example:
        >>> from mlmcgrad.theory import Constants
        >>> problem = Problem(Constants(d=1, c1=1.0, c2=1.0, c3=1.0), G=1.0, L=1.0, gap=1.0)
        >>> plan = recommend(0.5, problem)
        >>> plan.bound <= 0.5, plan.gamma.exponent
        (True, -0.5)
    """
    positive(accuracy, "accuracy")
    whole(max_iterations, "max_iterations")
    if method not in _BOUNDS:
        raise ValueError(f"method must be one of {sorted(_BOUNDS)}, got {method!r}")
    if not alphas or not scales:
        raise ValueError(f"alphas and scales must not be empty, got {alphas!r} and {scales!r}")

    def best(N: int, truncation: Power) -> tuple[float, float]:
        return _best_step(_BOUNDS[method], N, problem, truncation, settings)

    cheapest: tuple[float, int, Power] | None = None
    smallest = math.inf
    for alpha in alphas:
        for scale in scales:
            truncation = Power(positive(scale, "scales"), positive(alpha, "alphas"))
            N, reached = 1, best(1, truncation)[0]
            while reached > accuracy and max_iterations > N:
                N = min(2 * N, max_iterations)
                if cheapest and expected_cost(N // 2, truncation) > cheapest[0]:
                    break
                reached = best(N, truncation)[0]
            smallest = min(smallest, reached)
            if reached > accuracy:
                continue
            below, above = N // 2, N
            while above - below > 1:
                middle = (below + above) // 2
                inside = best(middle, truncation)[0] <= accuracy
                below, above = (below, middle) if inside else (middle, above)
            cost = expected_cost(above, truncation)
            if cheapest is None or cost < cheapest[0]:
                cheapest = cost, above, truncation
    if cheapest is None:
        raise UnreachableError(
            f"accuracy={accuracy:g} is not reached within max_iterations={max_iterations}: the "
            f"smallest bound is {smallest:g}; ask for less, allow more iterations, or use a chain "
            "with better constants"
        )
    cost, N, truncation = cheapest
    gamma = Power(best(N, truncation)[1], -0.5)
    result = _BOUNDS[method](
        N, problem, gamma=gamma, truncation=truncation, exact=_EXACT, **settings
    )
    return Plan(
        method=method,
        accuracy=accuracy,
        gamma=gamma,
        truncation=truncation,
        rate=_RATES[method](0.5, truncation.exponent),
        iterations=N,
        bound=float(result.total[0]),
        terms={name: float(term[0]) for name, term in result.terms.items()},
        expected_cost=cost,
        longest_chain=2 ** level(truncation(N)),
        average_cost=average_cost(N, truncation),
    )


def _best_step(
    bound: Callable[..., Bound],
    N: int,
    problem: Problem,
    truncation: Power,
    settings: dict[str, float],
) -> tuple[float, float]:
    """(bound, c) with the best c; A and D of A/c + B + D·c from three values of c."""

    def at(c: float) -> float:
        gamma = Power(c, -0.5)
        result = bound(N, problem, gamma=gamma, truncation=truncation, exact=_EXACT, **settings)
        return float(result.total[0])

    c = 1.0
    for _ in range(2):  # the second round works at the right scale, without cancellation
        half, one, double = at(c / 2), at(c), at(2 * c)
        falling, rising = half - one + (double - one) / 2, double - one + (half - one) / 2
        if falling > 0 and rising > 0:
            c *= math.sqrt(falling / rising)
    return at(c), c
