"""Sums Σ_{n=1}^{N} f(n) over iterations, for many N at once and for very large N.

Up to `EXACT` every term is added. Beyond it, where N may be 10^12 or more, the terms of schedules
c·n^e are smooth in n and

    Σ_{n=a+1}^{b} f(n) = ∫_{a+1/2}^{b+1/2} f(x) dx + O(f'(a))/24,

integrated by Gauss–Legendre in log x. The relative error is below 1e-8 for a ≥ 2^10.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlmcgrad.ranges import whole
from mlmcgrad.schedules import Power, Schedule

Array = NDArray[np.float64]
Iterations = int | Iterable[int]

EXACT = 2**20
LONGEST_EXACT = 2**24

_X, _W = np.polynomial.legendre.leggauss(12)


@dataclass(frozen=True, eq=False)
class Grid:
    """Nodes n and weights w with Σ_{n≤N} f(n) = Σ w f(n) over the nodes before `ends` of that N."""

    iterations: NDArray[np.int64]
    nodes: Array
    weights: Array
    ends: NDArray[np.int64]

    def sums(self, values: Array | float) -> Array:
        """Σ_{n=1}^{N} f(n) for each N, from the values of f at the nodes."""
        return np.asarray(np.cumsum(self.weights * values)[self.ends])


def grid(N: Iterations, schedules: Sequence[Schedule], exact: int = EXACT) -> Grid:
    """Nodes for the sums up to each N.

    Args:
        N: one number of iterations or several, each ≥ 1.
        schedules: the sequences that enter the sums; N > exact needs all to be c·n^e.
        exact: terms that are added one by one.

    Example:
        >>> float(grid(4, []).sums(grid(4, []).nodes)[0])
        10.0
    """
    iterations = [whole(n, "N") for n in (N if isinstance(N, Iterable) else [N])]
    if not iterations:
        raise ValueError("N must hold at least one number of iterations, got an empty sequence")
    longest = max(iterations)
    smooth = all(isinstance(schedule, Power) for schedule in schedules)
    if not smooth:
        exact = LONGEST_EXACT
        if longest > exact:
            raise ValueError(
                f"N={longest} is too many terms for a schedule that is a function (at most "
                f"{exact}); use schedules.power or schedules.constant, whose sums are integrated"
            )
    head = min(longest, whole(exact, "exact"))
    nodes, weights = [np.arange(1.0, head + 1)], [np.ones(head)]
    ends, count, left = {}, head, math.log(head + 0.5)
    for n in sorted(set(iterations)):
        if n <= head:
            ends[n] = n - 1
            continue
        right = math.log(n + 0.5)
        edges = np.linspace(left, right, max(1, math.ceil(right - left)) + 1)
        half = np.diff(edges)[:, None] / 2
        x = np.exp((edges[:-1, None] + edges[1:, None]) / 2 + half * _X)  # (panels, 12)
        nodes.append(x.ravel())
        weights.append((half * _W * x).ravel())
        count, left = count + x.size, right
        ends[n] = count - 1
    return Grid(
        iterations=np.array(iterations, dtype=np.int64),
        nodes=np.concatenate(nodes),
        weights=np.concatenate(weights),
        ends=np.array([ends[n] for n in iterations], dtype=np.int64),
    )


def values(schedule: Schedule, n: Array, name: str) -> Array:
    """The schedule at the nodes n; every value must be positive and finite."""
    if isinstance(schedule, Power):
        sequence = schedule.c * n**schedule.exponent
    else:
        sequence = np.array([float(schedule(int(k))) for k in n])
    wrong = ~(np.isfinite(sequence) & (sequence > 0))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"{name} must be positive and finite at every iteration, "
            f"got {sequence[first]} at n = {n[first]:g}"
        )
    return np.asarray(sequence)
