"""Numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

NONE = "–"


def number(value: float | None) -> str:
    """Three or four digits that matter."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0 or 1e-3 <= abs(value) < 1000:
        text = f"{value:.3g}"
    else:
        text = f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.2e}"
    return text.replace("-", "−")


def estimate(value: float | None, low: float | None, high: float | None) -> str:
    """A number with its interval, if there is one."""
    if low is None or high is None:
        return number(value)
    return f"{number(value)} ({number(low)} to {number(high)})"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    if not values:
        return NONE
    mean = float(np.mean(values))
    if len(values) == 1:
        return _digits(mean, mean / 1000.0)
    error = float(np.std(values, ddof=1))
    return f"{_digits(mean, error)} ± {_digits(error, error)}"


def _digits(value: float, error: float) -> str:
    """As many decimals as two digits of the error need."""
    decimals = 2 if error == 0.0 else min(6, max(0, 1 - math.floor(math.log10(abs(error)))))
    return f"{value:,.{decimals}f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.0f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def setting(value: Any) -> str:
    """The value of a setting."""
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)
