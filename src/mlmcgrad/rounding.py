"""Whole numbers out of floats: the one floor of chain lengths ⌊τ(k)⌋, for sampling and theory."""

from __future__ import annotations

import math

_TOLERANCE = 1e-12


def floor(x: float) -> int:
    """⌊x⌋ for x > 0, where an x that rounding left just below an integer counts as that integer.

    Example:
        >>> 1 / (1 / 93), floor(1 / (1 / 93)), floor(92.9)
        (92.99999999999999, 93, 92)
    """
    above = math.ceil(x)
    return above if above - x <= _TOLERANCE * x else math.floor(x)
