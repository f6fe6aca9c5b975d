"""Ergodicity constants (ζ, α, β) of a finite-state chain, as numbers that hold for every time.

Notation: d(t) = max_x TV(P^t(x,·), π) and d̄(t) = max_{x,y} TV(P^t(x,·), P^t(y,·)), TV = ½ Σ|·|.

**ζ, α** (Lemma "diff-measure"): d(i) ≤ ζ α^i for every i ≥ 0. For a block length m, i = r + qm with
r < m, Dobrushin's contraction gives d(i) ≤ d(r) d̄(m)^q, so any α ≥ d̄(m)^{1/m} is valid with

    ζ = max_{r<m} d(r) / α^r.

m is a power of two with d̄(m) ≤ 1e-4 (α may then come within a few percent of the second largest
eigenvalue modulus) and α is the minimiser of ζ/(1−α), the form in which c1, c2, c3 use the pair.

**β** (Lemma "mcdiarmid"): P_x(|f − E_x f| > ε) ≤ 2 exp(−β ε²/Σκ_i²) when f(X_1..X_p) changes by at
most κ_i with its i-th argument. Paulin (2015), McDiarmid's inequality for Markov chains
(Corollary 2.10): β = 2/τ_min, τ_min = inf_{0≤ε<1} τ(ε) ((2−ε)/(1−ε))², τ(ε) = min{t: d̄(t) ≤ ε}.
It holds for every initial law, a fixed point and π included, so the start needs no assumption. Here
its proof (his Theorem 2.9 on blocks of length m) is kept one step sharper:

    β = max_m 2 / { m (1 + d̄(1)/(1−d̄(m)))² }  ≥  2/τ_min.

Proof: let D_b be the martingale increments of f over blocks of m steps. Given the past, D_b lies in
an interval of length Σ_{j≥0} C_{b+j} p_j, with C_b the sum of κ over block b and p_j the
probability that two chains that differ in block b, coupled maximally, still differ in block b+j:
p_0 = 1, p_j ≤ d̄(1+(j−1)m) ≤ d̄(1) d̄(m)^{j−1}. Azuma–Hoeffding gives
2 exp(−2ε²/Σ_b(Σ_j C_{b+j}p_j)²); Young's inequality and C_b² ≤ m Σ_{i∈b} κ_i² bound the sum by
m (Σ_j p_j)² Σκ_i². With d̄(1) ≤ 1 this is Paulin's corollary; for independent draws (d̄(1) = 0)
it is McDiarmid's β = 2.

Distances are computed in double precision and raised by a bound on the rounding error.

A transition matrix P is accepted when it is square, finite, non-negative and row-stochastic, and
the chain it describes is irreducible and aperiodic (the paper's assumption H1): then πP = π has one
solution.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlmcgrad._checks import fraction, non_negative, positive

_BLOCK_DISTANCE = 1e-4  # d̄(m) at the block length m used for α
_MAX_STEPS = 2**24  # slower chains cannot be certified in double precision
_POINTS = 512  # times at which distances are kept; between them d is bounded by monotonicity
_ALL_PAIRS = 256  # above this number of states d̄ ≤ 2d replaces the maximum over pairs


@dataclass(frozen=True)
class Ergodicity:
    """Constants of an ergodic chain: TV(P^i(x,·), π) ≤ ζ α^i and the concentration constant β.

    `ergodicity` computes it for a finite chain; write it by hand if the constants are known.
    """

    zeta: float
    alpha: float
    beta: float
    _: KW_ONLY
    mixing_time: int | None = None
    """Smallest t with max_x TV(P^t(x,·), π) ≤ 1/4."""
    stationary: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        non_negative(self.zeta, "zeta")
        fraction(self.alpha, "alpha")
        positive(self.beta, "beta")


def ergodicity(P: ArrayLike) -> Ergodicity:
    """Ergodicity constants of the chain with transition matrix P, certified for every time.

    Args:
        P: transition matrix, P[x, y] from x to y; irreducible and aperiodic.

    Returns:
        ζ, α, β as in the module's formulas, the mixing time and the stationary law.

    Example:
        >>> chain = ergodicity([[0.7, 0.3], [0.2, 0.8]])  # d(i) = 0.6 · 0.5^i
        >>> round(chain.zeta, 6), round(chain.alpha, 6), round(chain.beta, 6), chain.mixing_time
        (0.6, 0.5, 0.5, 2)

    Reference:
        Levin and Peres, Markov Chains and Mixing Times, Section 4.4 (d and d̄); Paulin,
        Concentration inequalities for Markov chains by Marton couplings and spectral methods,
        Electronic Journal of Probability 20 (2015), no. 79.
    """
    matrix = transition_matrix(P)
    law = stationary_law(matrix)
    stationary = tuple(float(p) for p in law)
    if len(matrix) == 1:
        return Ergodicity(0.0, 0.0, 2.0, mixing_time=0, stationary=stationary)
    squares = _squares(matrix)
    block = 2 ** (len(squares) - 1)
    stride = max(1, block // _POINTS)
    step = squares[stride.bit_length() - 1]
    times = np.arange(0, block + 1, stride)
    to_law, between = np.empty(len(times)), np.empty(len(times))
    power = np.eye(len(matrix))
    for k, time in enumerate(times):
        to_law[k] = _to_law(power, law, int(time))
        between[k] = _between(power, to_law[k], int(time))
        power = _product(power, step)
    first = _between(matrix, 1.0, 1)
    zeta, alpha = _geometric(to_law[:-1], times[1:] - 1, float(between[-1]), block)
    return Ergodicity(
        zeta,
        alpha,
        _beta(between[1:], times[1:], first),
        mixing_time=_mixing_time(squares, law),
        stationary=stationary,
    )


def _squares(matrix: Matrix) -> list[Matrix]:
    """P, P², P⁴, … until d̄ is below the block distance."""
    powers, steps = [matrix], 1
    while _between(powers[-1], 1.0, steps) > _BLOCK_DISTANCE:
        steps *= 2
        if steps > _MAX_STEPS:
            raise ValueError(
                f"P mixes too slowly: after {steps // 2} steps the laws from two starts are still "
                f"{_between(powers[-1], 1.0, steps // 2):.3g} apart in total variation, too much "
                "to certify in double precision; pass your own constants as Ergodicity(...)"
            )
        powers.append(_product(powers[-1], powers[-1]))
    return powers


def _product(a: Matrix, b: Matrix) -> Matrix:
    product = a @ b
    return np.asarray(product / product.sum(axis=1, keepdims=True))


def _raised(distance: float, states: int, time: int) -> float:
    """Distance plus a bound on its rounding error after `time` products."""
    return min(1.0, distance + 4 * states * float(np.finfo(float).eps) * (time + 1))


def _to_law(power: Matrix, law: Matrix, time: int) -> float:
    return _raised(0.5 * float(np.abs(power - law).sum(axis=1).max()), len(law), time)


def _between(power: Matrix, to_law: float, time: int) -> float:
    if len(power) > _ALL_PAIRS and to_law < 0.5:
        return 2 * to_law
    rows = (float(np.abs(power - row).sum(axis=1).max()) for row in power)
    return _raised(0.5 * max(rows), len(power), time)


def _geometric(d: Matrix, ages: Matrix, block_distance: float, block: int) -> tuple[float, float]:
    """(ζ, α) with the smallest ζ/(1−α); d[k] bounds the distance until time ages[k]."""
    low = block_distance ** (1 / block) * (1 + 1e-15)
    high = max(low, block / (block + 1))  # beyond it ζ/(1−α) grows with α

    def log_ratio(alpha: Matrix) -> Matrix:
        return np.asarray(
            np.max(np.log(d) - ages * np.log(alpha)[:, None], axis=1) - np.log1p(-alpha)
        )

    left, right = np.log1p(-low), np.log1p(-high)
    for _ in range(6):  # quasi-convex in log(1−α): refine the grid around its minimum
        grid = np.linspace(left, right, 65)
        best = int(np.argmin(log_ratio(np.clip(-np.expm1(grid), low, high))))
        left, right = grid[max(0, best - 1)], grid[min(64, best + 1)]
    alpha = float(np.clip(-np.expm1(grid[best]), low, high))
    return float(np.max(d / alpha**ages)) * (1 + 1e-12), alpha


def _beta(between: Matrix, lengths: Matrix, first: float) -> float:
    """Largest 2/{m (1 + d̄(1)/(1−d̄(m)))²} over m = 1 and the block lengths m in `lengths`."""
    apart = np.append(between, first)
    m = np.append(lengths, 1)[apart < 1]
    return float(np.max(2 / (m * (1 + first / (1 - apart[apart < 1])) ** 2)))


def _mixing_time(squares: list[Matrix], law: Matrix) -> int:
    """Smallest t with d(t) ≤ 1/4, by bisection over the bits of t (d does not increase)."""
    power, time = np.eye(len(law)), 0  # d(0) = 1 − min π ≥ 1/2
    for bit, square in reversed(list(enumerate(squares))):
        candidate = _product(power, square)
        if _to_law(candidate, law, time + 2**bit) > 0.25:
            power, time = candidate, time + 2**bit
    return time + 1


Matrix = NDArray[np.float64]

ROW_SUM_TOLERANCE = 1e-6  # allows for rounding in float32; rows are then divided by their sum


def transition_matrix(P: ArrayLike) -> Matrix:
    """Check that P is the transition matrix of an irreducible aperiodic chain; return it.

    Args:
        P: P[x, y] is the probability of going from x to y; an array, nested lists or a tensor.

    Returns:
        The matrix in double precision, each row divided by its sum.

    Example:
        >>> transition_matrix([[0.0, 1.0], [1.0, 0.0]])
        Traceback (most recent call last):
        ValueError: P is not aperiodic: it returns to a state only after multiples of a period; ...
    """
    if hasattr(P, "detach"):  # numpy refuses a tensor that requires a gradient
        P = P.detach().cpu().numpy()
    matrix = np.array(P, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(f"P must be a square matrix, got shape {matrix.shape}")
    wrong = ~(np.isfinite(matrix) & (matrix >= 0))
    if wrong.any():
        x, y = np.argwhere(wrong)[0]
        raise ValueError(f"P must be finite and non-negative, got P[{x}, {y}] = {matrix[x, y]}")
    sums = matrix.sum(axis=1)
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[worst] - 1.0) > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"P is not row-stochastic: row {worst} sums to {sums[worst]:.9g} instead of 1; "
            "divide each row by its sum (P[x, y] is the probability of going from x to y)"
        )
    matrix /= sums[:, None]
    n = len(matrix)
    reached = _reached((matrix > 0) | np.eye(n, dtype=bool), n)
    if not reached.all():
        x, y = np.argwhere(~reached)[0]
        raise ValueError(
            f"P is not irreducible: state {y} is never reached from state {x}; pass the matrix of "
            "one closed class, or add transitions that connect the states"
        )
    # Wielandt: some power of an irreducible P is positive if and only if that one is.
    if not _reached(matrix > 0, (n - 1) ** 2 + 1).all():
        raise ValueError(
            "P is not aperiodic: it returns to a state only after multiples of a period; mix it "
            "with the identity, (P + I)/2, or give one state a positive probability of staying"
        )
    return matrix


def _reached(arcs: NDArray[np.bool_], steps: int) -> NDArray[np.bool_]:
    """Return which states can be reached in 2^k ≥ steps steps along arcs, for the smallest k."""
    for _ in range(math.ceil(math.log2(steps))):
        arcs = arcs.astype(np.float64) @ arcs > 0
    return arcs


def stationary_law(matrix: Matrix) -> Matrix:
    """Stationary law of an irreducible chain by state reduction.

    The algorithm never subtracts, so every entry, however small, is accurate to a few units in the
    last place.

    Reference:
        Grassmann, Taksar and Heyman, Regenerative analysis and steady state distributions for
        Markov chains, Operations Research 33 (1985).
    """
    work = matrix.copy()
    n = len(work)
    for last in range(n - 1, 0, -1):
        work[:last, last] /= work[last, :last].sum()
        work[:last, :last] += np.outer(work[:last, last], work[last, :last])
    law = np.ones(n)
    for state in range(1, n):
        law[state] = law[:state] @ work[:state, state]
    return np.asarray(law / law.sum())
