"""The AMSGrad theorem: its bound term by term, and its coefficients b0..b4.

With λ_n = ε̲_{n−1}, ε̲_0 = 0, ε̲_n = (δ + M_n²(1−ρ2^n))^{-1/2}, where M_n² is the paper's ε_n;
γ non-increasing, T and M non-decreasing:

    (1/ϖ_N) { gap + b0 + b1 Σ_{n=1}^N γ_{n+1}/T_{n+1} + b2 Σ γ_{n+1}² log T_{n+1}
              + b3 Σ (1−ρ1^n) γ_n² log T_n + b4 Σ (1 − γ_{n+1}²/γ_n²) }

    b0 = dG/(2δ(1−ρ1)) + γ_1 √(d/δ) (1 + 2 log T_1/log 2) G² + c2 (L/δ) G² γ_1² log T_1
    b1 = c1 G²/√δ
    b2 = (c2/(2δ)) (1 + 2L + 2δG) G²
    b3 = (1/(1−ρ1)) · c2 ρ1²/(2δ(1−ρ1)) · (L² + 2L + δ(1−ρ1)G/ρ1) G²
    b4 = dρ1G/(2δ(1−ρ1))

Appendix B, end of the proof of Theorem "amsgrad", with ε̲_0 = 0 as the theorem sets it. The factor
1/(1−ρ1) of b3 is not in the paper: its Lemma "mn-amsgrad" prints E‖m_{n−1}‖² ≤ c2 (1−ρ1)(1−ρ1^n)
G² log T_n where its proof gives c2 (1−ρ1^n)² G² log T_n (erratum 6, see docs/errata.md), and
(1−ρ1^n)² ≤ (1−ρ1)(1−ρ1^n)/(1−ρ1). b2 has twice the G³ that the proof needs, as printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlmcgrad.ranges import fraction, positive
from mlmcgrad.schedules import Power, Schedule, as_schedule
from mlmcgrad.theory.sums import EXACT, Iterations, grid, values
from mlmcgrad.theory.terms import AMSGradBound, Problem, check_monotone, log_lengths, truncations


@dataclass(frozen=True)
class AMSGradCoefficients:
    """b0..b4 of Theorem "amsgrad"."""

    b0: float
    b1: float
    b2: float
    b3: float
    b4: float


def amsgrad_coefficients(
    problem: Problem,
    *,
    gamma_1: float,
    truncation_1: float,
    rho1: float = 0.9,
    delta: float = 1.0,
    as_printed: bool = False,
) -> AMSGradCoefficients:
    """The coefficients b0..b4.

    Args:
        problem: constants, G, L, gap.
        gamma_1: first step size γ_1.
        truncation_1: first truncation T_1; the logarithms are of max(T_1, 2) (erratum 8).
        rho1: ρ1 in [0, 1).
        delta: δ > 0.
        as_printed: b3 without the factor 1/(1−ρ1) that its proof needs.

    Returns:
        The five coefficients.

    Example:
        >>> from mlmcgrad.theory import Constants
        >>> problem = Problem(Constants(d=1, c1=1.0, c2=2.0, c3=1.0), G=1.0, L=1.0, gap=1.0)
        >>> amsgrad_coefficients(problem, gamma_1=1.0, truncation_1=4.0, rho1=0.5).b3
        4.0
    """
    fraction(rho1, "rho1")
    positive(delta, "delta")
    positive(gamma_1, "gamma_1")
    positive(truncation_1, "truncation_1")
    c, G, L = problem.constants, problem.G, problem.L
    log_t1 = math.log(max(truncation_1, 2.0))
    forget = 1 - rho1
    b0 = c.d * G / (2 * delta * forget)
    b0 += gamma_1 * math.sqrt(c.d / delta) * (1 + 2 * log_t1 / math.log(2)) * G**2
    b0 += c.c2 * L / delta * G**2 * gamma_1**2 * log_t1
    b3 = c.c2 * rho1 / (2 * delta * forget) * (rho1 * (L**2 + 2 * L) + delta * forget * G) * G**2
    return AMSGradCoefficients(
        b0=b0,
        b1=c.c1 * G**2 / math.sqrt(delta),
        b2=c.c2 / (2 * delta) * (1 + 2 * L + 2 * delta * G) * G**2,
        b3=b3 if as_printed else b3 / forget,
        b4=c.d * rho1 * G / (2 * delta * forget),
    )


def amsgrad(
    N: Iterations,
    problem: Problem,
    *,
    gamma: float | Schedule,
    truncation: float | Schedule,
    rho1: float = 0.9,
    rho2: float = 0.999,
    delta: float = 1.0,
    clip: float | Schedule = 1.0,
    as_printed: bool = False,
    exact: int = EXACT,
) -> AMSGradBound:
    """Bound for MLMC-AMSGrad (Theorem "amsgrad").

    Args:
        N: number of iterations, or several.
        problem: constants, G, L, gap.
        gamma: step sizes γ_n, non-increasing.
        truncation: T_n ≥ 1, non-decreasing.
        rho1: ρ1 in [0, 1), the memory of the momentum.
        rho2: ρ2 in [0, 1), the memory of the squares.
        delta: δ > 0, inside the root of A_n.
        clip: threshold M_n of |Ĥ_n|, non-decreasing; the paper's ε_n is M_n².
        as_printed: use the paper's b3 instead of the corrected one (erratum 6).
        exact: beyond this n, sums of power schedules are integrated.

    Returns:
        The bound with its terms.

    Example:
        >>> from mlmcgrad.theory import Constants
        >>> b = amsgrad(4, Problem(Constants(1, c1=1.0, c2=0.0, c3=0.0), G=1.0, L=1.0, gap=2.0),
        ...             gamma=1.0, truncation=2.0, rho2=0.0, delta=3.0)
        >>> b.weight, b.initial  # 4 (3+1)^{-1/2}
        (array([2.]), array([1.]))
    """
    g, t = as_schedule(gamma, "gamma"), as_schedule(truncation, "truncation")
    threshold = as_schedule(clip, "clip")
    fraction(rho2, "rho2")
    sums = grid(N, [g, t, threshold], exact)
    n, one = sums.nodes, np.ones(1)
    step, next_step = values(g, n, "gamma"), values(g, n + 1, "gamma")
    length, next_length = truncations(t, n), truncations(t, n + 1)
    top = values(threshold, n, "clip")
    check_monotone("gamma", n, -step, -next_step, "non-increasing")
    check_monotone("truncation", n, length, next_length, "non-decreasing")
    check_monotone("clip", n, top, values(threshold, n + 1, "clip"), "non-decreasing")
    b = amsgrad_coefficients(
        problem,
        gamma_1=float(values(g, one, "gamma")[0]),
        truncation_1=float(truncations(t, one)[0]),
        rho1=rho1,
        delta=delta,
        as_printed=as_printed,
    )
    weight = sums.sums(next_step / np.sqrt(delta + top**2 * (1 - rho2**n)))
    memory = (1 - rho1**n) * step**2 * log_lengths(length)
    if isinstance(g, Power):  # avoids the cancellation of a large n
        change = -np.expm1(2 * g.exponent * np.log1p(1 / n))
    else:
        change = 1 - (next_step / step) ** 2
    return AMSGradBound(
        iterations=sums.iterations,
        weight=weight,
        initial=problem.gap / weight,
        bias=b.b1 * sums.sums(next_step / next_length) / weight,
        second_moment=b.b2 * sums.sums(next_step**2 * log_lengths(next_length)) / weight,
        constant=b.b0 / weight,
        momentum=b.b3 * sums.sums(memory) / weight,
        step_change=b.b4 * sums.sums(change) / weight,
    )
