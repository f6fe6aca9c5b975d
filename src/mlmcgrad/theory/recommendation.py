"""Schedules that the theory recommends for a wanted accuracy, and what they cost.

The corollaries give the best exponent of N at γ = 1/2 with constant λ̲, λ̄, ε, M, for every
truncation exponent 1/2 ≤ α ≤ 1: (log N)²/√N. The rate does not say which α is best, nor which
scales of γ_n = c n^{−1/2} and T_n = C n^α; the bound does. As a function of c it is A/c + B + D·c,
so the best c is √(A/D). For each (α, C) doubling and bisection give the smallest N with
bound ≤ accuracy, and the pair with the fewest expected chain steps is kept.

The multilevel estimator with truncation T_n runs, on average, κ_n + 2^{-κ_n} steps,
κ_n = ⌊log2 T_n⌋ (0 for T_n < 2), and at most 2^{κ_n}. Its mean is that of the plain average
H^{(2^{κ_n})}, which always runs 2^{κ_n}, more than T_n/2 and at most T_n.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from mlmcgrad._checks import positive, whole
from mlmcgrad.schedules import Power, Schedule, as_schedule
from mlmcgrad.theory import bounds, rates
from mlmcgrad.theory.bounds import Assumptions, Bound, grid, values
from mlmcgrad.theory.rates import Rate

Method = Literal["general", "adagrad", "amsgrad"]

_EXACT = 2**10  # the search needs many bounds: integrate early
ALPHAS = (0.5, 0.75, 1.0)
SCALES = tuple(4.0**k for k in range(10))


@dataclass(frozen=True)
class Recommendation:
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
    problem: Assumptions,
    method: Method = "general",
    *,
    alphas: Sequence[float] = ALPHAS,
    scales: Sequence[float] = SCALES,
    max_iterations: int = 10**15,
    **settings: float,
) -> Recommendation:
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
        >>> problem = Assumptions(Constants(d=1, c1=1.0, c2=1.0, c3=1.0), G=1.0, L=1.0, gap=1.0)
        >>> plan = recommend(0.5, problem)
        >>> plan.bound <= 0.5, plan.gamma.exponent
        (True, -0.5)
    """
    positive(accuracy, "accuracy")
    whole(max_iterations, "max_iterations")
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {sorted(get_args(Method))}, got {method!r}")
    if not alphas or not scales:
        raise ValueError(f"alphas and scales must not be empty, got {alphas!r} and {scales!r}")

    def bound(N: int, truncation: Power, c: float) -> Bound:
        theorem: Callable[..., Bound] = getattr(bounds, method)
        gamma = Power(c, -0.5)
        return theorem(N, problem, gamma=gamma, truncation=truncation, exact=_EXACT, **settings)

    def best(N: int, truncation: Power) -> tuple[float, float]:
        return _best_step(lambda c: float(bound(N, truncation, c).total[0]))

    def reaches(truncation: Power) -> Callable[[int], bool]:
        return lambda N: best(N, truncation)[0] <= accuracy

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
            first = N // 2 + 1  # the bound falls with N: the smallest N that reaches the accuracy
            N = first + bisect_left(range(first, N), True, key=reaches(truncation))
            cost = expected_cost(N, truncation)
            if cheapest is None or cost < cheapest[0]:
                cheapest = cost, N, truncation
    if cheapest is None:
        raise UnreachableError(
            f"accuracy={accuracy:g} is not reached within max_iterations={max_iterations}: the "
            f"smallest bound is {smallest:g}; ask for less, allow more iterations, or use a chain "
            "with better constants"
        )
    cost, N, truncation = cheapest
    c = best(N, truncation)[1]
    result = bound(N, truncation, c)
    return Recommendation(
        method=method,
        accuracy=accuracy,
        gamma=Power(c, -0.5),
        truncation=truncation,
        rate=getattr(rates, method)(0.5, truncation.exponent),
        iterations=N,
        bound=float(result.total[0]),
        terms={name: float(term[0]) for name, term in result.terms.items()},
        expected_cost=cost,
        longest_chain=2 ** level(truncation(N)),
        average_cost=average_cost(N, truncation),
    )


def _best_step(bound: Callable[[float], float]) -> tuple[float, float]:
    """Return (bound, c) with the best c; A and D of A/c + B + D·c from three values of c."""
    c = 1.0
    for _ in range(2):  # the second round works at the right scale, without cancellation
        half, one, double = bound(c / 2), bound(c), bound(2 * c)
        falling, rising = half - one + (double - one) / 2, double - one + (half - one) / 2
        noise = 1e-14 * one  # rounding; the sign of a term that is 0 would depend on the machine
        c *= math.sqrt(max(falling, noise) / max(rising, noise))
    return bound(c), c


def level(truncation: float) -> int:
    """κ = ⌊log2 T⌋, and 0 for T < 2.

    Example:
        >>> level(1.5), level(8.0), level(15.9)
        (0, 3, 3)
    """
    return max(0, math.frexp(truncation)[1] - 1)


def expected_cost(N: int, truncation: float | Schedule) -> float:
    """Expected chain steps Σ_{n=1}^{N} (κ_n + 2^{-κ_n}) of the multilevel estimator.

    Args:
        N: number of iterations.
        truncation: T_n; for a growing power of n the sum is taken level by level, for any N.

    Example:
        >>> expected_cost(4, 2.0), expected_cost(4, lambda n: float(2 * n))
        (6.0, 9.125)
    """
    return _by_level(N, truncation, lambda kappa: kappa + 2.0**-kappa)


def average_cost(N: int, truncation: float | Schedule) -> float:
    """Chain steps Σ_{n=1}^{N} 2^{κ_n} of the plain averages with the bias of the multilevel ones.

    Args:
        N: number of iterations.
        truncation: T_n, as for `expected_cost`.

    Example:
        >>> average_cost(4, lambda n: float(2 * n))  # 2 + 4 + 4 + 8
        18.0
    """
    return _by_level(N, truncation, lambda kappa: 2.0**kappa)


def _by_level(N: int, truncation: float | Schedule, cost: Callable[[Any], Any]) -> float:
    """Σ_{n=1}^{N} cost(κ_n) for a cost of one level, or of an array of them."""
    whole(N, "N")
    schedule = as_schedule(truncation, "truncation")
    if isinstance(schedule, Power) and schedule.exponent >= 0:
        start, total = 1, 0.0
        while start <= N:
            kappa = level(schedule(start))
            # The first n with T_n ≥ 2^{κ+1}, or N + 1.
            end = 1 + bisect_left(range(1, N + 1), 2.0 ** (kappa + 1), key=schedule)
            total += (end - start) * cost(kappa)
            start = end
        return total
    nodes = grid(N, [schedule], exact=N).nodes
    kappas = np.maximum(np.frexp(values(schedule, nodes, "truncation"))[1] - 1, 0)
    return float(np.sum(cost(kappas)))
