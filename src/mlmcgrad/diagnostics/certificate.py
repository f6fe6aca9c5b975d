"""What `certify` found: the gradient with its noise, the checks, and what can be said of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mlmcgrad.diagnostics.means import Mean
from mlmcgrad.hotelling import student_quantile

_CONFIDENCE = 0.95
NOT_ZERO = 1e-3  # p-value below which a gradient is said not to be 0
_CLEAR = 5.0  # standard errors of a norm that others are compared with


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool | None  # None: it could not be looked at
    sentence: str
    p_value: float = 1.0  # of the hypothesis that all is right, for checks that are tests

    def __str__(self) -> str:
        sign = {True: "passed", False: "FAILED", None: "not checked"}[self.passed]
        return f"{self.name:9s} {sign:12s} {self.sentence}"


@dataclass(frozen=True)
class Bias:
    """What a method is off by in the mean."""

    method: str
    vector: Tensor  # (d,)
    norm: float  # without its noise
    se: float
    unit: float  # what `relative` is relative to
    unit_name: str
    relative: float
    relative_se: float

    def __str__(self) -> str:
        return (
            f"{self.method} is biased here by {self.relative:.2g} ± {self.relative_se:.1g} of "
            f"{self.unit_name}."
        )


@dataclass(frozen=True, eq=False)
class Certificate:
    """The gradient at one θ, known to within an interval, and whether its checks have passed.

    Attributes:
        estimate: the gradient with its noise.
        units: in which each component is measured, (d,).
        unit_name: what they are.
        tolerance: half the width that an interval may have, in units.
        checks: what was looked at.
        evaluations: of the kernel's model, all together.
        length: of the simulations, the first half of which is not used for chains.
        simulations: how many of them.
        bias: of the method that was asked about.
    """

    estimate: Mean
    units: Tensor
    unit_name: str
    tolerance: float
    checks: tuple[Check, ...]
    evaluations: int
    length: int
    simulations: int
    bias: Bias | None = None

    @property
    def gradient(self) -> Tensor:
        """Of all parameters, one after another, (d,)."""
        return self.estimate.value

    @property
    def se(self) -> Tensor:
        """Standard errors, (d,)."""
        return self.estimate.spread.square().sum(0).sqrt()

    @cached_property
    def covariance(self) -> Tensor:
        """Of the estimate, (d, d)."""
        return self.estimate.spread.T @ self.estimate.spread

    @property
    def half_width(self) -> float:
        """Of the widest interval, in units: 95 % for all components together."""
        return float((self._quantile * self.se / self.units).max())

    @property
    def zero_within(self) -> float:
        """ε: every component is within ±ε units of 0, with 95 % confidence for all together."""
        return float(((self.gradient.abs() + self._quantile * self.se) / self.units).max())

    @property
    def p_value(self) -> float:
        """Of the hypothesis that the gradient is 0."""
        return self.p_value_of(torch.zeros_like(self.gradient))

    def p_value_of(self, gradient: Tensor) -> float:
        """Of the hypothesis that the gradient is this one, (d,): Hotelling's test."""
        return self.estimate.against(gradient.detach().flatten().double().cpu())

    @property
    def certified(self) -> bool:
        """Whether no check has failed."""
        return all(check.passed is not False for check in self.checks)

    @property
    def verdict(self) -> str:
        """What is certified, or which check has failed."""
        if not self.certified:
            failed = [check for check in self.checks if check.passed is False]
            return "NOT certified: " + " ".join(check.sentence for check in failed)
        p, within = self.p_value, f"±{self.zero_within:.2g} {self.unit_name}"
        if p >= NOT_ZERO:
            found = f"Certified: the gradient is 0 within {within} (p = {p:.2g})."
        else:
            norm, se = norm_of(self.gradient, self.estimate.spread)
            found = (
                f"Certified: the gradient has the norm {norm:.3g} ± {se:.1g}, it is not 0 "
                f"(p = {p:.1g}); every component is within {within}."
            )
        skipped = " ".join(check.sentence for check in self.checks if check.passed is None)
        return " ".join(filter(None, [found, str(self.bias or ""), skipped]))

    def __str__(self) -> str:
        title = (
            f"{self.simulations} simulations of length {self.length}, {self.evaluations:,} "
            f"evaluations; intervals of ±{self.half_width:.2g} {self.unit_name}"
        )
        return "\n".join([title, *map(str, self.checks), self.verdict])

    @property
    def _quantile(self) -> float:
        outside = (1.0 - _CONFIDENCE) / len(self.gradient)
        return student_quantile(outside, self.estimate.freedom)


def norm_of(value: Tensor, spread: Tensor) -> tuple[float, float]:
    """The norm of a measured vector without its noise, and the standard error of that.

    ‖v‖² has the mean ‖E v‖² + tr C and the variance 4 E[v]ᵀ C E[v] + 2 tr C², C = spreadᵀ spread.
    """
    squared = float(value @ value - spread.square().sum())
    variance = 4.0 * float((spread @ value).square().sum())
    few = spread if spread.shape[0] > spread.shape[1] else spread.T  # tr(AᵀA)² = tr(AAᵀ)²
    variance += 2.0 * float((few.T @ few).square().sum())
    norm = math.sqrt(max(0.0, squared))
    return norm, math.sqrt(variance) / (2.0 * norm) if norm > 0.0 else variance**0.25


def bias_of(method: str, found: Mean, certificate: Certificate) -> Bias:
    """Bias of a method whose mean was found, by the delta method.

    With b = m − g, the ratio ρ = ‖b‖/‖g‖ moves by {b̂·dm − (b̂ + ρ ĝ)·dg}/‖g‖. A gradient that may
    be 0 is nothing to compare with: then the unit is the norm of the units.
    """
    g, noise = certificate.gradient, certificate.estimate.spread
    off = found.minus(certificate.estimate)
    vector, (norm, se) = off.value, norm_of(off.value, off.spread)
    unit, unit_se = norm_of(g, noise)
    if unit <= _CLEAR * unit_se:
        unit = float(certificate.units.norm())
        name = f"the norm of the {certificate.unit_name}"
        return Bias(method, vector, norm, se, unit, name, norm / unit, se / unit)
    ratio = norm / unit
    # What ‖g‖ adds to the error of ‖b‖/‖g‖: its own noise, and that it is in b too.
    direction = vector / vector.norm().clamp(min=1e-300)
    along = noise @ direction
    added = (along + ratio * (noise @ (g / g.norm()))).square().sum() - along.square().sum()
    variance = max(0.0, se**2 + float(added)) / unit**2
    return Bias(method, vector, norm, se, unit, "the gradient's norm", ratio, math.sqrt(variance))
