"""Rates of the three corollaries: E‖∇V(θ_R)‖² = O(N^exponent (log N)^log_power).

For γ_n ∝ n^{−γ}, T_n ∝ n^α and, with Σ_{n≤N} n^{−η} = O(Ψ_N(η)), Σ_{n≤N} n^{−η} log n = O(Φ_N(η)),

    Ψ_N(η) = N^{1−η},        log N,      1      for η < 1, = 1, > 1,
    Φ_N(η) = N^{1−η} log N,  (log N)²,   1,

general, λ̲_n ∝ n^{−λ̲}, λ̄_n ∝ n^{λ̄}, γ + λ̲ < 1:
    N^{−(1−γ−λ̲)} { 1 + Ψ(α+γ−λ̄) + Φ(2γ−2λ̄) }
Adagrad, M_{n−1} ∝ n^M, ε_n ∝ n^{ε̄}, γ + M < 1:
    N^{−(1−γ−M)} { 1 + Ψ(α+γ−ε̄) + Ψ(1+γ−3ε̄−α/2) + Φ(2γ−2ε̄) }
AMSGrad, M_n ∝ n^M, which is the paper's ε_n = M_n² ∝ n^{2M}, γ + M < 1:
    N^{−(1−γ−M)} { 1 + Ψ(α+γ) + Φ(2γ) + γ log N }

The printed text differs (see docs/errata.md): Corollary "gen" writes λ̲_n ∝ n^{+λ̲} beside this same
rate and condition (erratum 4), Corollary "adagrad" has N^{−(1+ε̄−γ−M)} under γ + M < 1 + ε̄, right
only for ε̄ = 0 (erratum 5). The paper has α > 0; α = 0 (constant T) is accepted here, with Ψ for Φ
because log T_n no longer grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlmcgrad._checks import non_negative

Order = tuple[float, float]
"""(exponent of N, power of log N)."""


@dataclass(frozen=True)
class Rate:
    """O(N^exponent (log N)^log_power), and where it comes from."""

    exponent: float
    log_power: float
    dominant: tuple[str, ...]
    """Names of the terms of that order."""
    terms: dict[str, Order]
    """Every term's own order, named as in `bounds`."""


def psi(eta: float) -> Order:
    """Order of Σ_{n≤N} n^{−η}.

    Example:
        >>> psi(0.5), psi(1.0), psi(2.0)
        ((0.5, 0.0), (0.0, 1.0), (0.0, 0.0))
    """
    if math.isclose(eta, 1.0):
        return 0.0, 1.0
    return (1 - eta, 0.0) if eta < 1 else (0.0, 0.0)


def phi(eta: float) -> Order:
    """Order of Σ_{n≤N} n^{−η} log n.

    Example:
        >>> phi(0.5), phi(1.0), phi(2.0)
        ((0.5, 1.0), (0.0, 2.0), (0.0, 0.0))
    """
    exponent, log_power = psi(eta)
    return exponent, log_power + 1 if eta < 1 or log_power else 0.0


def general(
    gamma: float, alpha: float, *, lower: float = 0.0, upper: float = 0.0, as_printed: bool = False
) -> Rate:
    """Rate for preconditioners with eigenvalues in [λ̲_n, λ̄_n] (Corollary "gen").

    Args:
        gamma: γ ≥ 0 of γ_n ∝ n^{−γ}.
        alpha: α ≥ 0 of T_n ∝ n^α.
        lower: λ̲ ≥ 0 of λ̲_n ∝ n^{−λ̲}.
        upper: λ̄ ≥ 0 of λ̄_n ∝ n^{λ̄}.
        as_printed: the paper's text, which has λ̲_n ∝ n^{+λ̲} and then this same rate; the numbers
            do not change, and α = 0 is refused.

    Returns:
        The order in N.

    Example:
        >>> rate = general(gamma=0.5, alpha=0.5)
        >>> rate.exponent, rate.log_power, rate.dominant
        (-0.5, 2.0, ('second_moment',))
    """
    _check(gamma, alpha, as_printed, lower=lower, upper=upper)
    return _rate(
        _leading("lower", gamma, lower),
        initial=(0.0, 0.0),
        bias=psi(alpha + gamma - upper),
        second_moment=_second(2 * gamma - 2 * upper, alpha),
    )


def adagrad(
    gamma: float, alpha: float, *, clip: float = 0.0, epsilon: float = 0.0, as_printed: bool = False
) -> Rate:
    """Rate of MLMC-Adagrad (Corollary "adagrad").

    Args:
        gamma: γ ≥ 0 of γ_n ∝ n^{−γ}.
        alpha: α ≥ 0 of T_n ∝ n^α.
        clip: M ≥ 0 of M_{n−1} ∝ n^M.
        epsilon: ε̄ ≥ 0 of ε_n ∝ n^{ε̄}.
        as_printed: the leading factor N^{−(1+ε̄−γ−M)} of the paper's text (erratum 5).

    Returns:
        The order in N.

    Example:
        >>> adagrad(gamma=0.5, alpha=2.0).dominant  # a long truncation costs third moments
        ('third_moment',)
    """
    _check(gamma, alpha, as_printed, clip=clip, epsilon=epsilon)
    limit = 1 + epsilon if as_printed else 1.0
    return _rate(
        _leading("clip", gamma, clip, limit),
        initial=(0.0, 0.0),
        bias=psi(alpha + gamma - epsilon),
        second_moment=_second(2 * gamma - 2 * epsilon, alpha),
        third_moment=psi(1 + gamma - 3 * epsilon - alpha / 2),
    )


def amsgrad(gamma: float, alpha: float, *, clip: float = 0.0, as_printed: bool = False) -> Rate:
    """Rate of MLMC-AMSGrad (Corollary "ams-grad").

    Args:
        gamma: γ ≥ 0 of γ_n ∝ n^{−γ}.
        alpha: α ≥ 0 of T_n ∝ n^α.
        clip: M ≥ 0 of M_n ∝ n^M; the paper's ε̄ is 2M.
        as_printed: the paper's text, which is right (erratum 6 changes b3 only); α = 0 is refused.

    Returns:
        The order in N.

    Example:
        >>> rate = amsgrad(gamma=0.5, alpha=0.25)
        >>> rate.exponent, rate.log_power, rate.dominant
        (-0.25, 0.0, ('bias',))
    """
    _check(gamma, alpha, as_printed, clip=clip)
    second = _second(2 * gamma, alpha)
    terms: dict[str, Order] = {
        "initial": (0.0, 0.0),
        "bias": psi(alpha + gamma),
        "second_moment": second,
        "constant": (0.0, 0.0),
        "momentum": second,
    }
    if gamma > 0:  # a constant step does not change
        terms["step_change"] = (0.0, 1.0)
    return _rate(_leading("clip", gamma, clip), **terms)


def _second(eta: float, alpha: float) -> Order:
    return phi(eta) if alpha > 0 else psi(eta)


def _rate(leading: float, **terms: Order) -> Rate:
    # Exponents that are equal in exact arithmetic, such as 0.5 − 0.3 and 0.2, may differ by 1e-16.
    orders = {
        name: (round(leading + exponent, 12) + 0.0, power)
        for name, (exponent, power) in terms.items()
    }
    worst = max(orders.values())
    dominant = tuple(name for name, order in orders.items() if order == worst)
    return Rate(worst[0], worst[1], dominant, orders)


def _check(gamma: float, alpha: float, as_printed: bool, **others: float) -> None:
    non_negative(gamma, "gamma")
    non_negative(alpha, "alpha")
    for name, value in others.items():
        non_negative(value, name)
    if as_printed and alpha == 0:
        raise ValueError("alpha must be positive in the paper's text, got 0; pass as_printed=False")


def _leading(name: str, gamma: float, value: float, limit: float = 1.0) -> float:
    """Return the exponent of 1/ϖ_N, which must be negative."""
    if gamma + value >= limit:
        raise ValueError(
            f"gamma + {name} must be less than {limit:g}, got {gamma + value:g}: the sum of the "
            "weights of R would not diverge; use steps that decay more slowly"
        )
    return -(limit - gamma - value)
