"""Chain steps that N iterations take.

The multilevel estimator with truncation T_n runs, on average, κ_n + 2^{-κ_n} steps,
κ_n = ⌊log2 T_n⌋ (0 for T_n < 2), and at most 2^{κ_n}. Its mean is that of the plain average
H^{(2^{κ_n})}, which always runs 2^{κ_n}, more than T_n/2 and at most T_n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mlmcgrad.ranges import whole
from mlmcgrad.schedules import Power, Schedule, as_schedule
from mlmcgrad.theory.sums import grid, values


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
            end = _first(schedule, 2.0 ** (kappa + 1), N)
            total += (end - start) * cost(kappa)
            start = end
        return total
    nodes = grid(N, [schedule], exact=N).nodes
    kappas = np.maximum(np.frexp(values(schedule, nodes, "truncation"))[1] - 1, 0)
    return float(np.sum(cost(kappas)))


def _first(schedule: Power, threshold: float, N: int) -> int:
    """First n ≤ N with T_n ≥ threshold for a non-decreasing schedule, N + 1 if there is none."""
    if schedule(N) < threshold:
        return N + 1
    below, above = 0, N
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if schedule(middle) >= threshold else (middle, above)
    return above
