"""Is a measured mean 0? Hotelling's test, and the laws of Fisher and Student that it needs.

Of a mean m ∈ R^d whose covariance C is estimated with ν degrees of freedom,

    T² = mᵀ C^{-1} m,     F = T² (ν − d + 1) / (ν d) ~ F(d, ν − d + 1)   if E[m] = 0,

and with I for the regularised incomplete beta function

    P(F(a, b) > x) = I_{b/(b + ax)}(b/2, a/2),     P(|t_ν| > x) = P(F(1, ν) > x²).

The core has no SciPy, so the tails are computed here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_PRECISE = 1e-15


class Hotelling(NamedTuple):
    """F and its degrees of freedom."""

    f: float
    degrees: tuple[int, int]

    @property
    def p_value(self) -> float:
        """Of the hypothesis that the mean is 0."""
        return fisher_tail(self.f, *self.degrees)


def hotelling(mean: Tensor, covariance: Tensor, freedom: int) -> Hotelling:
    """Test whether a mean is 0.

    Args:
        mean: m, (d,).
        covariance: C, of m and not of one observation, (d, d).
        freedom: ν ≥ d, with which C was estimated.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> round(hotelling(2.0 * one, torch.diag(one), freedom=10).p_value, 4)  # Student's t
        0.0734
    """
    d = len(mean)
    if freedom < d:
        raise ValueError(f"freedom must be ≥ {d}, the numbers of the mean, got {freedom!r}")
    statistic = float(mean @ torch.linalg.solve(covariance, mean))
    return Hotelling(statistic * (freedom - d + 1) / (freedom * d), (d, freedom - d + 1))


def fisher_tail(x: float, a: float, b: float) -> float:
    """P(F(a, b) > x).

    Example:
        >>> round(fisher_tail(1.0, 5, 5), 12)
        0.5
    """
    if x == math.inf:
        return 0.0
    ratio = a * max(0.0, x)
    return _beta(b / (b + ratio), ratio / (b + ratio), b / 2.0, a / 2.0)


def student_tail(x: float, freedom: float) -> float:
    """P(|t| > x) of Student's law."""
    return fisher_tail(x * x, 1.0, freedom)


def student_quantile(probability: float, freedom: float) -> float:
    """The x with P(|t| > x) = probability.

    Example:
        >>> round(student_quantile(0.05, 10), 3)
        2.228
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must lie strictly between 0 and 1, got {probability!r}")
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > probability:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_tail(middle, freedom) > probability else (low, middle)
    return high


def _beta(x: float, y: float, a: float, b: float) -> float:
    """I_x(a, b), y being 1 − x, by the continued fraction where it converges fast."""
    if y == 0.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta(y, x, b, a)
    front = a * math.log(x) + b * math.log(y) - math.log(a)
    front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + c_1/(1 + c_2/(1 + …)), by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, 10_000):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        # Not 0 for any of these x: the first is above 1 − (a + b)/(a + b + 2).
        d = 1.0 / (1.0 + term * d)
        c = 1.0 + term / c
        value *= c * d
        if abs(c * d - 1.0) < _PRECISE:
            break
    return value
