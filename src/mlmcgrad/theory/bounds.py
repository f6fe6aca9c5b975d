"""Bounds of E‖∇V(θ_R)‖² after N iterations (Theorems "gen", "adagrad", "amsgrad"), term by term.

ϖ_N = Σ_{n=0}^{N} γ_{n+1} λ_{n+1}, gap = E V(θ_0) − V*. Logarithms are of max(T_n, 2)
(erratum 8, see docs/errata.md).

general, λ_n = λ̲_n:
    (2/ϖ_N) { gap + c1 G² Σ_{n=1}^{N+1} γ_n λ̄_n/T_n + c2 G² (L/2) Σ_{n=1}^{N+1} γ_n² λ̄_n² log T_n }

Adagrad, λ_n = ε̲_{n−1}, ε̲_0 = ε_1, ε̲_n = (ε_{n+1}^{-2} + max_{i<n} M_i²)^{-1/2}:
    (2/ϖ_N) { gap + c1 G² Σ_{n=1}^{N+1} γ_n ε_n/T_n + c3 G⁴ Σ γ_n ε_n³ √T_n/n
              + c2 G² (L/2) Σ γ_n² ε_n² log T_n }

AMSGrad: in `theory.amsgrad`, with its coefficients b0..b4.

The factor 2 in the first two theorems is the paper's. Its own proofs need only 1, so these bounds
are conservative by a factor of 2.
"""

from __future__ import annotations

import numpy as np

from mlmcgrad.schedules import Schedule, as_schedule
from mlmcgrad.theory.amsgrad import amsgrad as amsgrad
from mlmcgrad.theory.sums import EXACT, Array, Iterations, grid, values
from mlmcgrad.theory.terms import (
    AdagradBound,
    Bound,
    Problem,
    check_ordered,
    log_lengths,
    truncations,
)


def general(
    N: Iterations,
    problem: Problem,
    *,
    gamma: float | Schedule,
    truncation: float | Schedule,
    lower: float | Schedule = 1.0,
    upper: float | Schedule = 1.0,
    exact: int = EXACT,
) -> Bound:
    """Bound for preconditioners with eigenvalues in [λ̲_n, λ̄_n] (Theorem "gen").

    Args:
        N: number of iterations, or several.
        problem: constants, G, L, gap.
        gamma: step sizes γ_n.
        truncation: T_n ≥ 1.
        lower: λ̲_n.
        upper: λ̄_n ≥ λ̲_n; both are 1 for plain stochastic gradient.
        exact: beyond this n, sums of power schedules are integrated.

    Returns:
        The bound with its terms.

    Example:
        >>> from mlmcgrad.theory import Constants, Problem
        >>> b = general(3, Problem(Constants(1, c1=1.0, c2=0.0, c3=0.0), G=1.0, L=1.0, gap=4.0),
        ...             gamma=1.0, truncation=2.0)
        >>> b.initial, b.bias, b.total  # 2·4/4, 2·(4/2)/4
        (array([2.]), array([1.]), array([3.]))
    """
    g, t = as_schedule(gamma, "gamma"), as_schedule(truncation, "truncation")
    low, high = as_schedule(lower, "lower"), as_schedule(upper, "upper")
    sums = grid(N, [g, t, low, high], exact)
    one = np.ones(1)

    def parts(n: Array) -> tuple[Array, Array, Array]:
        step, length, top = values(g, n, "gamma"), truncations(t, n), values(high, n, "upper")
        bottom = values(low, n, "lower")
        check_ordered(bottom, top, n)
        return step * bottom, step * top / length, (step * top) ** 2 * log_lengths(length)

    # Σ_{n=1}^{N+1} f(n) = f(1) + Σ_{n=1}^{N} f(n+1)
    weight, bias, second = (
        first + sums.sums(rest)
        for first, rest in zip(parts(one), parts(sums.nodes + 1), strict=True)
    )
    c, G = problem.constants, problem.G
    return Bound(
        iterations=sums.iterations,
        weight=weight,
        initial=2 * problem.gap / weight,
        bias=2 * c.c1 * G**2 * bias / weight,
        second_moment=c.c2 * G**2 * problem.L * second / weight,
    )


def adagrad(
    N: Iterations,
    problem: Problem,
    *,
    gamma: float | Schedule,
    truncation: float | Schedule,
    epsilon: float | Schedule = 1.0,
    clip: float | Schedule = 1.0,
    exact: int = EXACT,
) -> AdagradBound:
    """Bound for MLMC-Adagrad (Theorem "adagrad").

    Args:
        N: number of iterations, or several.
        problem: constants, G, L, gap.
        gamma: step sizes γ_n.
        truncation: T_n ≥ 1.
        epsilon: ε_n, the largest eigenvalue that A_{n−1} may have.
        clip: clip(n) is the threshold of |Ĥ_n| at iteration n = 1, 2, …, the paper's M_{n−1}.
        exact: beyond this n, sums of power schedules are integrated.

    Returns:
        The bound with its terms.

    Example:
        >>> from mlmcgrad.theory import Constants, Problem
        >>> b = adagrad(1, Problem(Constants(1, c1=0.0, c2=0.0, c3=1.0), G=1.0, L=1.0, gap=0.0),
        ...             gamma=1.0, truncation=4.0, clip=3**0.5)
        >>> b.weight, b.third_moment  # 1 + (1+3)^{-1/2}, 2·(2 + 2/2)/1.5
        (array([1.5]), array([4.]))
    """
    g, t = as_schedule(gamma, "gamma"), as_schedule(truncation, "truncation")
    eps, threshold = as_schedule(epsilon, "epsilon"), as_schedule(clip, "clip")
    sums = grid(N, [g, t, eps, threshold], exact)
    largest_clip = np.maximum.accumulate(values(threshold, sums.nodes, "clip"))

    def parts(n: Array, clip_so_far: Array | float) -> tuple[Array, Array, Array, Array]:
        step, length, top = values(g, n, "gamma"), truncations(t, n), values(eps, n, "epsilon")
        return (
            step * (top**-2 + clip_so_far**2) ** -0.5,
            step * top / length,
            step * top**3 * np.sqrt(length) / n,
            (step * top) ** 2 * log_lengths(length),
        )

    weight, bias, third, second = (
        first + sums.sums(rest)
        for first, rest in zip(
            parts(np.ones(1), 0.0), parts(sums.nodes + 1, largest_clip), strict=True
        )
    )
    c, G = problem.constants, problem.G
    return AdagradBound(
        iterations=sums.iterations,
        weight=weight,
        initial=2 * problem.gap / weight,
        bias=2 * c.c1 * G**2 * bias / weight,
        second_moment=c.c2 * G**2 * problem.L * second / weight,
        third_moment=2 * c.c3 * G**4 * third / weight,
    )
