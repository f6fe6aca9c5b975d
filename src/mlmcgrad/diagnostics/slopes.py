"""Straight lines through measured points: slopes with standard errors, and how straight they are.

y ≈ a + b x,    weights 1/se²;    se(b) = 1/√(Σ w (x − x̄_w)²)   with standard errors given,
                                  √(residual variance / Σ (x − x̄)²)   without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fit:
    """A fitted line y = intercept + slope · x."""

    slope: float
    slope_se: float
    intercept: float
    r2: float
    """Share of the (weighted) variance of y that the line explains."""


def fit_line(x: Sequence[float], y: Sequence[float], se: Sequence[float] | None = None) -> Fit:
    """Least squares, weighted by the standard errors of y where they are given.

    Args:
        x: abscissae, at least two different ones.
        y: measured values.
        se: their standard errors, all positive.

    Example:
        >>> fit = fit_line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
        >>> fit.slope, fit.intercept, fit.r2
        (2.0, 1.0, 1.0)
    """
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"x and y must have the same length ≥ 2, got {len(x)} and {len(y)}")
    if se is not None and (len(se) != len(x) or not all(s > 0.0 for s in se)):
        raise ValueError(f"se must hold a positive number for each of the {len(x)} points")
    if not all(map(math.isfinite, (*x, *y))):
        raise ValueError("x and y must be finite")
    weight = [1.0] * len(x) if se is None else [s**-2 for s in se]
    total = math.fsum(weight)
    mean_x = math.fsum(w * a for w, a in zip(weight, x, strict=True)) / total
    mean_y = math.fsum(w * b for w, b in zip(weight, y, strict=True)) / total
    spread = math.fsum(w * (a - mean_x) ** 2 for w, a in zip(weight, x, strict=True))
    if spread == 0.0:
        raise ValueError("x must hold at least two different values")
    pairs = list(zip(weight, x, y, strict=True))
    slope = math.fsum(w * (a - mean_x) * (b - mean_y) for w, a, b in pairs) / spread
    intercept = mean_y - slope * mean_x
    residual = math.fsum(w * (b - intercept - slope * a) ** 2 for w, a, b in pairs)
    variance = math.fsum(w * (b - mean_y) ** 2 for w, _, b in pairs)
    if se is None:
        error = math.sqrt(residual / (len(x) - 2) / spread) if len(x) > 2 else 0.0
    else:
        error = spread**-0.5
    r2 = 1.0 - residual / variance if variance > 0.0 else 1.0
    return Fit(slope, error, intercept, r2)


def fit_power(x: Sequence[float], y: Sequence[float], se: Sequence[float] | None = None) -> Fit:
    """Fit y = e^intercept · x^slope, by a line through the logarithms.

    Points with y ≤ 0 (a measured bias that noise has swallowed) cannot be used and are left out.

    Args:
        x: positive abscissae.
        y: measured values.
        se: their standard errors.

    Example:
        >>> round(fit_power([1.0, 2.0, 4.0], [3.0, 1.5, 0.75]).slope, 12)
        -1.0
    """
    rows = [i for i, value in enumerate(y) if value > 0.0]
    if len(rows) < 2:
        raise ValueError(f"y must be positive at ≥ 2 points, it is at {len(rows)}")
    return fit_line(
        [math.log(x[i]) for i in rows],
        [math.log(y[i]) for i in rows],
        None if se is None else [se[i] / y[i] for i in rows],
    )
