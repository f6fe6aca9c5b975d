"""Sequences indexed by the iteration n = 1, 2, …: step sizes γ_n, truncations T_n, clipping M_n.

Everything in the library that may change with n accepts a schedule: a callable of n. A plain
number is accepted wherever a schedule is, and stands for the constant sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

from mlmcgrad._checks import number, whole

Schedule: TypeAlias = Callable[[int], float]

_TOLERANCE = 1e-12  # of `floor`


@dataclass(frozen=True)
class Power:
    """The sequence c · n^exponent, which `power` makes as well.

    Args:
        c: value at n = 1.
        exponent: positive for a growing sequence (T_n = n^{1/2}), negative for a decaying one
            (γ_n = c n^{-1/2}).

    Example:
        >>> power(1.0, 0.5)(16)
        4.0
    """

    c: float
    exponent: float

    def __post_init__(self) -> None:
        # Not c: its range depends on the argument (infinity is a valid clipping threshold).
        number(self.exponent, "exponent")

    def __call__(self, n: SupportsIndex) -> float:
        """Value at iteration n ≥ 1."""
        return self.c * float(whole(n, "n")) ** self.exponent


def constant(c: float) -> Power:
    """The sequence with the value c for every n.

    Example:
        >>> constant(0.1)(1000)
        0.1
    """
    return Power(c, 0.0)


power = Power


def as_schedule(value: float | Schedule, name: str) -> Schedule:
    """Read an argument that may be a number or a schedule; `name` is used in the error."""
    if callable(value):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return constant(float(value))
    raise TypeError(
        f"{name} must be a number or a schedule (a callable of n = 1, 2, …), got {value!r}; "
        f"for example {name}=mlmcgrad.schedules.power(1.0, 0.5)"
    )


def value_at(value: float | Schedule, n: int | None, name: str) -> float:
    """The value of an argument at iteration n; a constant needs no n.

    Raises:
        TypeError: n is None, and the argument is a schedule.
    """
    schedule = as_schedule(value, name)
    if n is None:
        if isinstance(schedule, Power) and schedule.exponent == 0.0:
            return schedule.c
        raise TypeError(
            f"n must be given, because {name} is a schedule ({value!r}); pass the number of the "
            "iteration, n=1, 2, …"
        )
    return schedule(n)


def floor(x: float) -> int:
    """⌊x⌋ for x > 0, where an x that rounding left just below an integer counts as that integer.

    Example:
        >>> 1 / (1 / 93), floor(1 / (1 / 93)), floor(92.9)
        (92.99999999999999, 93, 92)
    """
    above = math.ceil(x)
    return above if above - x <= _TOLERANCE * x else math.floor(x)
