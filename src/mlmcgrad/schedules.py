"""Sequences indexed by the iteration n = 1, 2, …: step sizes γ_n, truncations T_n, clipping M_n.

Every setting that may change with n accepts a schedule, a callable of n, or a plain number, which
stands for the constant sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, SupportsIndex, TypeAlias

from mlmcgrad._checks import number, whole

Schedule: TypeAlias = Callable[[int], float]

_TOLERANCE = 1e-12  # of `floor`, and of where a decay begins


@dataclass(frozen=True)
class Power:
    """The sequence c · n^exponent, which `power` returns.

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


@dataclass(frozen=True)
class ConstantThenDecay:
    """A constant, then a decay to 0; see `constant_then_linear` and `cosine`.

    Args:
        value: value of the first iterations.
        total: number of iterations; the value is 0 for n > total.
        decay: share of the iterations in which the value falls, in (0, 1].
        shape: `"linear"` for 1 − x, or `"cosine"` for (1 + cos πx)/2, where x goes from 0 to 1.
    """

    value: float
    total: int
    decay: float
    shape: Literal["linear", "cosine"] = "linear"

    def __post_init__(self) -> None:
        number(self.value, "value")
        whole(self.total, "total")
        if not 0.0 < self.decay <= 1.0:
            raise ValueError(f"decay must be in (0, 1], a share of total, got {self.decay!r}")
        if self.shape not in ("linear", "cosine"):
            raise ValueError(f"shape must be 'linear' or 'cosine', got {self.shape!r}")

    @property
    def begin(self) -> int:
        """Number of iterations before the decay."""
        return math.floor((1.0 - self.decay) * self.total + _TOLERANCE * self.total)

    def __call__(self, n: SupportsIndex) -> float:
        """Value at iteration n ≥ 1."""
        # The last iteration still moves: the value would be 0 after it.
        x = (whole(n, "n") - 1 - self.begin) / (self.total - self.begin)
        x = min(1.0, max(0.0, x))
        if self.shape == "linear":
            return self.value * (1.0 - x)
        return self.value * math.cos(0.5 * math.pi * x) ** 2 if x < 1.0 else 0.0


def constant_then_linear(value: float, total: int, decay: float = 1.0 / 3.0) -> ConstantThenDecay:
    """A constant, then a straight line that would reach 0 after the last iteration.

    Args:
        value: step size until the decay begins.
        total: number of iterations.
        decay: share of them in which the step size falls; 1 for all of them.

    Example:
        >>> lr = constant_then_linear(0.3, 900)
        >>> [round(lr(n), 3) for n in (1, 601, 701, 801, 900)]
        [0.3, 0.3, 0.2, 0.1, 0.001]
    """
    return ConstantThenDecay(value, total, decay)


def cosine(value: float, total: int, decay: float = 1.0) -> ConstantThenDecay:
    """Half a cosine from `value` to 0, after a constant if `decay` is below 1.

    Args:
        value: step size of the first iteration.
        total: number of iterations.
        decay: share of them in which the step size falls.

    Example:
        >>> lr = cosine(1.0, 100)
        >>> [round(lr(n), 3) for n in (1, 26, 51, 101)]
        [1.0, 0.854, 0.5, 0.0]
    """
    return ConstantThenDecay(value, total, decay, "cosine")


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
