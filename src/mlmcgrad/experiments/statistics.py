"""What a few independent values say about their mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


def student_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean and Student's 95 % confidence interval for it, as (mean, low, high).

    The interval is None for fewer than two values; so is the mean if there are no values or one of
    them is not finite.

    Example:
        >>> mean, low, high = student_interval([1.0, 2.0, 3.0])
        >>> round(mean, 6), round(low, 3), round(high, 3)
        (2.0, -0.484, 4.484)
    """
    if not values or not all(map(math.isfinite, values)):
        return None, None, None
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2.0, len(values) - 1)) * error
    return mean, mean - half, mean + half
