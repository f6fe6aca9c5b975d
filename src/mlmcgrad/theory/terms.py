"""Input and output of the bounds: the constants of the problem, the terms of the theorems."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from mlmcgrad.ranges import non_negative, positive
from mlmcgrad.schedules import Schedule
from mlmcgrad.theory.estimator_constants import Constants
from mlmcgrad.theory.sums import Array, values


@dataclass(frozen=True)
class Problem:
    """What the theorems need to know about the objective and its gradient estimates.

    Example:
        >>> Problem(Constants(d=2, c1=1.0, c2=50.0, c3=900.0), G=1.0, L=0.5, gap=2.0).L
        0.5
    """

    constants: Constants
    _: KW_ONLY
    G: float
    """Bound of the Euclidean norm ‖H_θ(x)‖, hence of ‖∇V‖."""
    L: float
    """Lipschitz constant of ∇V."""
    gap: float
    """E V(θ_0) − V(θ*)."""

    def __post_init__(self) -> None:
        positive(self.G, "G")
        positive(self.L, "L")
        non_negative(self.gap, "gap")


@dataclass(frozen=True, eq=False)
class Bound:
    """A bound at each of `iterations`; the terms include their factor 1/ϖ_N or 2/ϖ_N."""

    iterations: NDArray[np.int64]
    weight: Array
    """ϖ_N, the normalisation of the law of R."""
    initial: Array
    """The term of E V(θ_0) − V*."""
    bias: Array
    second_moment: Array

    @property
    def terms(self) -> dict[str, Array]:
        """The terms by name; they add up to `total`."""
        names = [f.name for f in fields(self) if f.name not in ("iterations", "weight")]
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> Array:
        """The bound of E‖∇V(θ_R)‖² for each N."""
        return np.asarray(np.sum(list(self.terms.values()), axis=0))


@dataclass(frozen=True, eq=False)
class AdagradBound(Bound):
    """Adds the term of c3: the preconditioner depends on the current gradient."""

    third_moment: Array


@dataclass(frozen=True, eq=False)
class AMSGradBound(Bound):
    """Adds the terms of b0 (constant), b3 (momentum) and b4 (change of the step)."""

    constant: Array
    momentum: Array
    step_change: Array


def log_lengths(length: Array) -> Array:
    """Logarithm of max(T, 2), which bounds the moments of Ĥ (erratum 8, see docs/errata.md)."""
    return np.asarray(np.log(np.maximum(length, 2.0)))


def truncations(schedule: Schedule, n: Array) -> Array:
    """T_n at the nodes n; all must be ≥ 1."""
    lengths = values(schedule, n, "truncation")
    if (lengths < 1).any():
        first = int(np.argmax(lengths < 1))
        raise ValueError(
            f"truncation must be ≥ 1, got {lengths[first]:g} at n = {n[first]:g}; "
            "a chain has at least one step"
        )
    return lengths


def check_monotone(name: str, n: Array, now: Array, following: Array, what: str) -> None:
    """Refuse a sequence that decreases from `now` to `following`."""
    wrong = following < now - 1e-12 * np.abs(now)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"{name} must be {what}, got {abs(now[first]):g} at n = {n[first]:g} and then "
            f"{abs(following[first]):g}"
        )


def check_ordered(lower: Array, upper: Array, n: Array) -> None:
    """Refuse eigenvalue bounds with λ̲_n > λ̄_n."""
    wrong = lower > upper * (1 + 1e-12)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"lower must not exceed upper, got lower={lower[first]:g} and "
            f"upper={upper[first]:g} at n = {n[first]:g}"
        )
