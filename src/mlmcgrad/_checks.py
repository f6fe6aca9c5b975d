"""Range checks of arguments that are numbers; every error names the argument and its value."""

from __future__ import annotations

import math
from typing import SupportsIndex


def number(value: float, name: str) -> float:
    """Return value as a float if it is a finite real number."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}")
    result = float(value)
    if not math.isfinite(result):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return result


def positive(value: float, name: str) -> float:
    """Return value if it is > 0."""
    result = number(value, name)
    if result <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return result


def non_negative(value: float, name: str) -> float:
    """Return value if it is ≥ 0."""
    result = number(value, name)
    if result < 0:
        raise ValueError(f"{name} must be ≥ 0, got {value!r}")
    return result


def fraction(value: float, name: str) -> float:
    """Return value if it lies in [0, 1)."""
    result = number(value, name)
    if not 0 <= result < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")
    return result


def whole(value: SupportsIndex, name: str, least: int = 1, most: int | None = None) -> int:
    """Return value if it is an integer ≥ least, and ≤ most if there is such a limit."""
    integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not integer or value.__index__() < least or (most is not None and value.__index__() > most):
        which = f"≥ {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {which}, got {value!r}")
    return value.__index__()
