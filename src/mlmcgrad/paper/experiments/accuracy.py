"""Bias, moments and cost of an estimator against a known gradient, for a ladder of T.

Proposition 1 of the paper bounds ‖E[Ĥ] − h‖ ≤ c1 G/T, E‖Ĥ‖² ≤ c2 G² log T, E‖Ĥ‖³ ≤ c3 G³ √T and the
expected cost κ + 2^{−κ}, for the estimate of one chain.

**Stratification.** The distribution of the level is known, so for any function φ

    E[φ(Ĥ)] = Σ_{k≤κ} μ(k) E[φ(Ĥ) | K = k] + P(K > κ) E[φ(H^{(ℓ_0)})],

and the conditional expectations are measured one level at a time. This removes the variance of K,
which is most of the variance, and each level serves every truncation.

**Bias.** The squared bias is estimated without the noise of its plug-in, ‖b̂‖² − tr Σ̂, with Σ̂ the
covariance matrix of b̂; its standard deviation is √(4 bᵀΣ̂b + 2 tr Σ̂²).

**Lines.** y ≈ a + b x with weights 1/se², where se(b) is 1/√(Σ w (x − x̄_w)²) with standard errors
given, and √(residual variance / Σ (x − x̄)²) without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch

from mlmcgrad.diagnostics._certify import Z
from mlmcgrad.diagnostics._compare import Known, Reference, as_reference
from mlmcgrad.diagnostics._levels import Sampler, Stratum
from mlmcgrad.diagnostics._pilot import Simulator
from mlmcgrad.diagnostics._plan import outcomes
from mlmcgrad.estimators import MLMC, Average, MLMCSum
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import ISIR
from mlmcgrad.kernels.base import Start, take
from mlmcgrad.lengths import Lengths

_RESAMPLES = 100
Quantity: TypeAlias = Literal["bias", "second_moment", "third_moment"]


@dataclass(frozen=True)
class Row:
    """The estimate of one chain at a T (`Average`: length); `_se` are standard errors."""

    truncation: float
    length: int  # of the chain whose bias it has
    bias: float
    bias_se: float
    bias_low: float  # 95 % confidence interval
    bias_high: float
    variance: float  # trace of the covariance matrix
    second_moment: float
    second_moment_se: float
    third_moment: float
    third_moment_se: float
    cost: float  # transitions, mean over levels that were drawn
    expected_cost: float  # its exact expectation


@dataclass(frozen=True)
class LadderRung:
    """One truncation of the ladder: its strata and their probabilities."""

    truncation: float
    length: int
    shares: tuple[float, ...]
    strata: tuple[int, ...]
    cost: float
    expected_cost: float


@dataclass(frozen=True)
class Accuracy:
    """A ladder of truncations, and fitted lines for lengths of at least `since`.

    The slopes of the theory hold for chains much longer than the mixing time. Rungs share strata,
    so their errors are dependent; standard errors of slopes therefore come from resampling the
    strata by their normal approximation (parametric bootstrap).
    """

    rungs: tuple[LadderRung, ...]
    strata: tuple[Stratum, ...]
    reference: Reference

    @property
    def rows(self) -> list[Row]:
        """One row per truncation."""
        return [_row(rung, self.strata, self.reference) for rung in self.rungs]

    def fit(self, quantity: Quantity, since: float = 1.0) -> LineFit:
        """Fit a line to a quantity against log T, for lengths of at least `since`.

        In theory, log bias has the slope −1 and log E‖Ĥ‖³ a slope of at most ½; E‖Ĥ‖² itself is
        straight in log T.
        """
        generator = torch.Generator().manual_seed(0)
        slopes = []
        for _ in range(_RESAMPLES):
            strata = tuple(_resampled(s, generator) for s in self.strata)
            # If no bias exceeds the noise there is no slope.
            with contextlib.suppress(ValueError):
                twin = dataclasses.replace(self, strata=strata)
                slopes.append(twin._line(quantity, since).slope)
        if len(slopes) < _RESAMPLES // 2:
            raise ValueError(
                f"no line can be fitted to chain lengths ≥ {since:.0f}: the bias is below the noise"
                "; use more replicates, or fit shorter chains too"
            )
        return dataclasses.replace(self._line(quantity, since), slope_se=statistics.stdev(slopes))

    def _line(self, quantity: Quantity, since: float) -> LineFit:
        rows = [row for row in self.rows if row.length >= since]
        x, y = [row.length for row in rows], [getattr(row, quantity) for row in rows]
        if quantity == "second_moment":
            return fit_line([math.log(length) for length in x], y)
        se = [max(row.bias_se, 1e-12) for row in rows] if quantity == "bias" else None
        return fit_power(x, y, se)


def accuracy(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    reference: Known,
    ladder: Sequence[int],
    generator: torch.Generator,
    replicates: int = 100_000,
    least: int = 1000,
    report: Callable[[float], None] = lambda share: None,
) -> Accuracy:
    """Measure an estimator for a ladder of truncations.

    Args:
        gradient: with `parameters` given, and `MLMC` or `Average` for its estimator, whose
            truncation (length) the ladder replaces.
        x0: where chains start, (rows, *shape); replicates use the rows in turn.
        context: as for `gradient.backward`.
        reference: a problem with an exact gradient, tensors, or the result of `certify`.
        ladder: values of T, for example 2, 4, …, 1024.
        generator: source of all randomness.
        replicates: chains of length 1; longer chains get fewer, so that all cost about the same.
        least: minimum number of chains of each length.
        report: called with the completed share.
    """
    sampler = Sampler(gradient, x0, context, generator, replicates, least)
    known = as_reference(reference, sampler)
    if not ladder:
        raise ValueError("ladder must contain at least one truncation, got none")
    ladder, estimator = sorted(ladder), gradient.estimator
    if not isinstance(estimator, (MLMC, MLMCSum, Average)):
        raise TypeError(f"gradient.estimator must be MLMC, MLMCSum or Average, got {estimator!r}")
    plain = isinstance(estimator, Average)
    change: Any = partial(dataclasses.replace, estimator)
    every = [change(**{"length" if plain else "truncation": float(each)}) for each in ladder]
    draws: list[tuple[Callable[[int], Lengths], int]]  # of the strata
    if plain:
        draws = [(partial(e.draw, n=None, generator=generator), int(e.length)) for e in every]
    else:  # the levels of the last one are those of all truncations
        last = outcomes(every[-1])
        draws = [(partial(_at_level, every[-1], level), steps) for _, level, steps in last]
    strata: list[Stratum] = []
    for lengths, length in draws:
        strata.append(sampler.draw(lengths, length))
        report(len(strata) / len(draws))
    rungs = []
    for i, (each, truncation) in enumerate(zip(every, ladder, strict=True)):
        levels = [(1.0, 0, truncation)] if plain else outcomes(each)
        steps = each.draw(replicates, None, generator).longest.double()
        rungs.append(
            LadderRung(
                truncation=float(truncation),
                length=levels[-1][2],
                shares=tuple(share for share, _, _ in levels),
                strata=(i,) if plain else tuple(range(len(levels))),
                cost=float(steps.mean()),
                expected_cost=each.expected_length(),
            )
        )
    return Accuracy(tuple(rungs), tuple(strata), known)


def _resampled(stratum: Stratum, generator: torch.Generator) -> Stratum:
    """Draw another stratum from the normal approximation of the moments."""
    z = torch.randn(len(stratum.mean) + 2, dtype=torch.float64, generator=generator)
    values, vectors = torch.linalg.eigh(stratum.covariance / stratum.count)
    shift = vectors @ (values.clamp(min=0.0).sqrt() * z[2:])
    second = stratum.second + float(z[0]) * (stratum.second_variance / stratum.count) ** 0.5
    third = stratum.third + float(z[1]) * (stratum.third_variance / stratum.count) ** 0.5
    return dataclasses.replace(
        stratum, mean=stratum.mean + shift, second=abs(second), third=abs(third)
    )


def _at_level(estimator: MLMC | MLMCSum, level: int, chains: int) -> Lengths:
    return estimator.lengths_for(torch.full((chains,), level))


def _row(rung: LadderRung, strata: Sequence[Stratum], known: Reference) -> Row:
    """Combine the strata of a rung with their probabilities."""
    parts = [(share, strata[i]) for share, i in zip(rung.shares, rung.strata, strict=True)]
    mean = sum((share * s.mean for share, s in parts), torch.zeros_like(known.value))
    noise = torch.diag(known.se**2)
    for share, s in parts:
        noise = noise + share**2 * s.covariance / s.count
    bias = mean - known.value
    squared = float(bias @ bias - noise.trace())
    spread = float(4.0 * bias @ noise @ bias + 2.0 * (noise @ noise).trace())
    deviation, norm = math.sqrt(spread), math.sqrt(max(squared, 0.0))
    second = math.fsum(share * s.second for share, s in parts)
    second_variance = math.fsum(share**2 * s.second_variance / s.count for share, s in parts)
    third = math.fsum(share * s.third for share, s in parts)
    third_variance = math.fsum(share**2 * s.third_variance / s.count for share, s in parts)
    return Row(
        truncation=rung.truncation,
        length=rung.length,
        bias=norm,
        bias_se=deviation / (2.0 * norm) if norm > 0.0 else math.sqrt(deviation),
        bias_low=math.sqrt(max(0.0, squared - Z * deviation)),
        bias_high=math.sqrt(max(0.0, squared + Z * deviation)),
        variance=second - float(mean @ mean),
        second_moment=second,
        second_moment_se=math.sqrt(second_variance),
        third_moment=third,
        third_moment_se=math.sqrt(third_variance),
        cost=rung.cost,
        expected_cost=rung.expected_cost,
    )


@dataclass(frozen=True)
class LineFit:
    """A fitted line y = intercept + slope · x."""

    slope: float
    slope_se: float
    intercept: float
    r2: float  # share of the (weighted) variance of y that the line explains


def fit_line(x: Sequence[float], y: Sequence[float], se: Sequence[float] | None = None) -> LineFit:
    """Fit a line by least squares, weighted by the standard errors of y if they are given.

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
    weight = [1.0] * len(x) if se is None else [s**-2 for s in se]
    total = math.fsum(weight)
    mean_x = math.fsum(w * a for w, a in zip(weight, x, strict=True)) / total
    mean_y = math.fsum(w * b for w, b in zip(weight, y, strict=True)) / total
    spread = math.fsum(w * (a - mean_x) ** 2 for w, a in zip(weight, x, strict=True))
    if spread == 0.0:
        raise ValueError("x must contain at least two different values")
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
    return LineFit(slope, error, intercept, r2)


def fit_power(x: Sequence[float], y: Sequence[float], se: Sequence[float] | None = None) -> LineFit:
    """Fit y = e^intercept · x^slope by a line through the logarithms.

    Points with y ≤ 0, such as a bias below the noise, are left out.

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
        raise ValueError(f"y must be positive at ≥ 2 points, got {len(rows)}")
    return fit_line(
        [math.log(x[i]) for i in rows],
        [math.log(y[i]) for i in rows],
        None if se is None else [se[i] / y[i] for i in rows],
    )


def autocorrelation_time(
    gradient: MarkovGradient, x0: Start, *context: Any, length: int, generator: torch.Generator
) -> tuple[float, float]:
    """Return the autocorrelation time of the gradient, in steps, and the acceptance rate.

    The time is length · Var H^{(length)} / Var H(X), from the variances between chains, so it needs
    some hundred rows and chains that forget their start within half their length.
    """
    source, half = Simulator(gradient, x0, context, generator), length // 2
    averaged, outcome = source.run(Average(half, half))
    single, _ = source.run(Average(1, 2 * half - 1))
    if isinstance(gradient.kernel, ISIR):
        # Version 0.2 looked at weights here: with its draws the same seeds give the same results.
        rows = torch.arange(source.rows, device=generator.device).repeat_interleave(256)
        gradient.kernel.propose(len(rows), *take(context, rows), generator=generator)
    ratio = half * averaged.var(0) / single.var(0).clamp(min=torch.finfo(torch.float64).tiny)
    return max(1.0, float(ratio.max())), outcome.accepted / (source.rows * 2 * half)
