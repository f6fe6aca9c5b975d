"""Bounds of E‖∇V(θ_R)‖² after N iterations (Theorems "gen", "adagrad", "amsgrad"), term by term.

ϖ_N = Σ_{n=0}^{N} γ_{n+1} λ_{n+1}, gap = E V(θ_0) − V*. Logarithms are of max(T_n, 2)
(erratum 8, see docs/errata.md).

general, λ_n = λ̲_n:
    (2/ϖ_N) { gap + c1 G² Σ_{n=1}^{N+1} γ_n λ̄_n/T_n + c2 G² (L/2) Σ_{n=1}^{N+1} γ_n² λ̄_n² log T_n }

Adagrad, λ_n = ε̲_{n−1}, ε̲_0 = ε_1, ε̲_n = (ε_{n+1}^{-2} + max_{i<n} M_i²)^{-1/2}:
    (2/ϖ_N) { gap + c1 G² Σ_{n=1}^{N+1} γ_n ε_n/T_n + c3 G⁴ Σ γ_n ε_n³ √T_n/n
              + c2 G² (L/2) Σ γ_n² ε_n² log T_n }

The factor 2 in the first two theorems is the paper's. Its own proofs need only 1, so these bounds
are conservative by a factor of 2.

AMSGrad, λ_n = ε̲_{n−1}, ε̲_0 = 0, ε̲_n = (δ + M_n²(1−ρ2^n))^{-1/2}, where M_n² is the paper's ε_n;
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

Sums are taken for many N at once. Up to `EXACT` every term is added. Beyond it, where N may be
10^12 or more, the terms of schedules c·n^e are smooth in n and

    Σ_{n=a+1}^{b} f(n) = ∫_{a+1/2}^{b+1/2} f(x) dx + O(f'(a))/24,

integrated by Gauss–Legendre in log x. The relative error is below 1e-8 for a ≥ 2^10.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from mlmcgrad._checks import fraction, non_negative, positive, whole
from mlmcgrad.schedules import Power, Schedule, as_schedule
from mlmcgrad.theory.estimator_constants import Constants

Array = NDArray[np.float64]
Iterations = int | Iterable[int]

EXACT = 2**20
LONGEST_EXACT = 2**24

_X, _W = np.polynomial.legendre.leggauss(12)


@dataclass(frozen=True)
class Assumptions:
    """What the theorems need to know about the objective and its gradient estimates.

    Example:
        >>> Assumptions(Constants(d=2, c1=1.0, c2=50.0, c3=900.0), G=1.0, L=0.5, gap=2.0).L
        0.5
    """

    constants: Constants
    _: KW_ONLY
    G: float
    """Bound of the Euclidean norm ‖H_θ(x)‖, hence of ‖∇V‖."""
    L: float
    """Lipschitz constant of ∇V."""
    gap: float
    """E V(θ_0) − V(θ*)."""

    def __post_init__(self) -> None:
        positive(self.G, "G")
        positive(self.L, "L")
        non_negative(self.gap, "gap")


@dataclass(frozen=True, eq=False)
class Bound:
    """A bound of E‖∇V(θ_R)‖² at each of `iterations`."""

    iterations: NDArray[np.int64]
    weight: Array
    """ϖ_N, the normalisation of the law of R."""
    terms: dict[str, Array]
    """The terms with their factor 1/ϖ_N or 2/ϖ_N: "initial" (that of E V(θ_0) − V*), "bias" and
    "second_moment"; for Adagrad "third_moment", because the matrix depends on the current gradient;
    for AMSGrad "constant" (b0), "momentum" (b3) and "step_change" (b4)."""

    @property
    def total(self) -> Array:
        """The sum of the terms for each N."""
        return np.asarray(np.sum(list(self.terms.values()), axis=0))


def log_lengths(length: Array) -> Array:
    """Return the logarithm of max(T, 2), which bounds the moments of Ĥ (erratum 8)."""
    return np.asarray(np.log(np.maximum(length, 2.0)))


def truncations(schedule: Schedule, n: Array) -> Array:
    """Return T_n at the nodes n; all must be ≥ 1."""
    lengths = values(schedule, n, "truncation")
    message = "truncation must be ≥ 1, got {:g} at n = {n:g}; a chain has at least one step"
    refuse(lengths < 1, n, message, lengths)
    return lengths


def check_monotone(name: str, n: Array, now: Array, following: Array, sign: float) -> None:
    """Refuse a sequence that decreases (sign 1) or increases (sign −1) after a node n."""
    what = "non-decreasing" if sign > 0 else "non-increasing"
    message = f"{name} must be {what}, got {{:g}} at n = {{n:g}} and then {{:g}}"
    refuse(sign * (following - now) < -1e-12 * now, n, message, now, following)


def general(
    N: Iterations,
    problem: Assumptions,
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
        >>> from mlmcgrad.theory import Constants, Assumptions
        >>> b = general(3, Assumptions(Constants(1, c1=1.0, c2=0.0, c3=0.0), G=1.0, L=1.0, gap=4.0),
        ...             gamma=1.0, truncation=2.0)
        >>> b.terms["initial"], b.terms["bias"], b.total  # 2·4/4, 2·(4/2)/4
        (array([2.]), array([1.]), array([3.]))
    """
    g, t = as_schedule(gamma, "gamma"), as_schedule(truncation, "truncation")
    low, high = as_schedule(lower, "lower"), as_schedule(upper, "upper")
    sums = grid(N, [g, t, low, high], exact)

    def parts(n: Array) -> tuple[Array, Array, Array]:
        step, length, top = values(g, n, "gamma"), truncations(t, n), values(high, n, "upper")
        bottom = values(low, n, "lower")
        message = "lower must not exceed upper, got lower={:g} and upper={:g} at n = {n:g}"
        refuse(bottom > top * (1 + 1e-12), n, message, bottom, top)
        return step * bottom, step * top / length, (step * top) ** 2 * log_lengths(length)

    weight, bias, second = sums.shifted(parts(np.ones(1)), parts(sums.nodes + 1))
    return Bound(sums.iterations, weight, _terms(problem, weight, bias, second))


def _terms(problem: Assumptions, weight: Array, bias: Array, second: Array) -> dict[str, Array]:
    """Return the terms shared by the first two theorems, from ϖ_N and the sums in them."""
    c, G = problem.constants, problem.G
    return {
        "initial": 2 * problem.gap / weight,
        "bias": 2 * c.c1 * G**2 * bias / weight,
        "second_moment": c.c2 * G**2 * problem.L * second / weight,
    }


def adagrad(
    N: Iterations,
    problem: Assumptions,
    *,
    gamma: float | Schedule,
    truncation: float | Schedule,
    epsilon: float | Schedule = 1.0,
    clip: float | Schedule = 1.0,
    exact: int = EXACT,
) -> Bound:
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
        >>> from mlmcgrad.theory import Constants, Assumptions
        >>> b = adagrad(1, Assumptions(Constants(1, c1=0.0, c2=0.0, c3=1.0), G=1.0, L=1.0, gap=0.0),
        ...             gamma=1.0, truncation=4.0, clip=3**0.5)
        >>> b.weight, b.terms["third_moment"]  # 1 + (1+3)^{-1/2}, 2·(2 + 2/2)/1.5
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

    start, rest = parts(np.ones(1), 0.0), parts(sums.nodes + 1, largest_clip)
    weight, bias, third, second = sums.shifted(start, rest)
    terms = _terms(problem, weight, bias, second)
    terms["third_moment"] = 2 * problem.constants.c3 * problem.G**4 * third / weight
    return Bound(sums.iterations, weight, terms)


@dataclass(frozen=True)
class AMSGradCoefficients:
    """b0..b4 of Theorem "amsgrad"."""

    b0: float
    b1: float
    b2: float
    b3: float
    b4: float


def amsgrad_coefficients(
    problem: Assumptions,
    *,
    gamma_1: float,
    truncation_1: float,
    rho1: float = 0.9,
    delta: float = 1.0,
    as_printed: bool = False,
) -> AMSGradCoefficients:
    """Return the coefficients b0..b4.

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
        >>> problem = Assumptions(Constants(d=1, c1=1.0, c2=2.0, c3=1.0), G=1.0, L=1.0, gap=1.0)
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


@np.errstate(under="ignore")  # harmless, whatever np.seterr says
def amsgrad(
    N: Iterations,
    problem: Assumptions,
    *,
    gamma: float | Schedule,
    truncation: float | Schedule,
    rho1: float = 0.9,
    rho2: float = 0.999,
    delta: float = 1.0,
    clip: float | Schedule = 1.0,
    as_printed: bool = False,
    exact: int = EXACT,
) -> Bound:
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
        >>> b = amsgrad(4, Assumptions(Constants(1, c1=1.0, c2=0.0, c3=0.0), G=1.0, L=1.0, gap=2.0),
        ...             gamma=1.0, truncation=2.0, rho2=0.0, delta=3.0)
        >>> b.weight, b.terms["initial"]  # 4 (3+1)^{-1/2}
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
    check_monotone("gamma", n, step, next_step, -1.0)
    check_monotone("truncation", n, length, next_length, 1.0)
    check_monotone("clip", n, top, values(threshold, n + 1, "clip"), 1.0)
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
    terms = {
        "initial": problem.gap / weight,
        "bias": b.b1 * sums.sums(next_step / next_length) / weight,
        "second_moment": b.b2 * sums.sums(next_step**2 * log_lengths(next_length)) / weight,
        "constant": b.b0 / weight,
        "momentum": b.b3 * sums.sums(memory) / weight,
        "step_change": b.b4 * sums.sums(change) / weight,
    }
    return Bound(sums.iterations, weight, terms)


@dataclass(frozen=True, eq=False)
class IterationGrid:
    """Nodes n and weights w with Σ_{n≤N} f(n) = Σ w f(n) over the nodes before `ends` of that N."""

    iterations: NDArray[np.int64]
    nodes: Array
    weights: Array
    ends: NDArray[np.int64]

    def sums(self, values: Array | float) -> Array:
        """Return Σ_{n=1}^{N} f(n) for each N, from the values of f at the nodes."""
        return np.asarray(np.cumsum(self.weights * values)[self.ends])

    def shifted(self, first: Sequence[Array], rest: Sequence[Array]) -> list[Array]:
        """Return Σ_{n=1}^{N+1} f(n) for several f, from f(1) and the f(n + 1) at the nodes."""
        return [start + self.sums(f) for start, f in zip(first, rest, strict=True)]


def grid(N: Iterations, schedules: Sequence[Schedule], exact: int = EXACT) -> IterationGrid:
    """Return the nodes for the sums up to each N.

    Args:
        N: one number of iterations or several, each ≥ 1.
        schedules: the sequences that enter the sums; N > exact needs all to be c·n^e.
        exact: terms that are added one by one.

    Example:
        >>> float(grid(4, []).sums(grid(4, []).nodes)[0])
        10.0
    """
    iterations = [whole(n, "N", most=10**18) for n in (N if isinstance(N, Iterable) else [N])]
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
    return IterationGrid(
        iterations=np.array(iterations, dtype=np.int64),
        nodes=np.concatenate(nodes),
        weights=np.concatenate(weights),
        ends=np.array([ends[n] for n in iterations], dtype=np.int64),
    )


def values(schedule: Schedule, n: Array, name: str) -> Array:
    """Return the schedule at the nodes n; every value must be positive and finite."""
    if isinstance(schedule, Power):
        sequence = schedule.c * n**schedule.exponent
    else:
        sequence = np.array([float(schedule(int(k))) for k in n])
    wrong = ~(np.isfinite(sequence) & (sequence > 0))
    message = f"{name} must be positive and finite at every iteration, got {{}} at n = {{n:g}}"
    refuse(wrong, n, message, sequence)
    return np.asarray(sequence)


def refuse(wrong: NDArray[np.bool_], n: Array, message: str, *sequences: Array) -> None:
    """Raise if a node is wrong; the message formats the sequences and n at the first such node."""
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(message.format(*(sequence[first] for sequence in sequences), n=n[first]))
