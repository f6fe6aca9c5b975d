"""Bias, moments and cost of an estimator against a known answer, for a ladder of T.

What Proposition 1 of the paper bounds: ‖E[Ĥ] − h‖ ≤ c1 G/T, E‖Ĥ‖² ≤ c2 G² log T,
E‖Ĥ‖³ ≤ c3 G³ √T, expected cost κ + 2^{−κ}; of one chain's estimate.

The squared bias is estimated without the noise that its plug-in has, ‖b̂‖² − tr Σ̂, with Σ̂ the
covariance matrix of b̂, and its standard deviation is √(4 bᵀΣ̂b + 2 tr Σ̂²).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from mlmcgrad.diagnostics.reference import Known, Reference, as_reference
from mlmcgrad.diagnostics.slopes import Fit, fit_line, fit_power
from mlmcgrad.diagnostics.strata import Sampler, Stratum
from mlmcgrad.estimators import MLMC, Average, MLMCSum
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start
from mlmcgrad.plan import Plan

_Z = 1.959963984540054  # of the 95 % confidence interval
_RESAMPLES = 100


@dataclass(frozen=True)
class Row:
    """One chain's estimate at one truncation T (`Average`: length); `_se` are standard errors."""

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
class Rung:
    """One step of the ladder: which strata make it up, and with which probabilities."""

    truncation: float
    length: int
    shares: tuple[float, ...]
    strata: tuple[int, ...]
    cost: float
    expected_cost: float


@dataclass(frozen=True)
class Accuracy:
    """A ladder of truncations, and the lines through it from a chain length on.

    The theory's slopes are those of chains much longer than the mixing time. Rungs share strata,
    so their errors are dependent; standard errors of slopes are therefore found by resampling
    the strata from their normal approximation (parametric bootstrap).
    """

    rungs: tuple[Rung, ...]
    strata: tuple[Stratum, ...]
    reference: Reference

    @property
    def rows(self) -> list[Row]:
        """One row for each truncation."""
        return [_row(rung, self.strata, self.reference) for rung in self.rungs]

    def bias_slope(self, since: float = 1.0) -> Fit:
        """Line through log bias against log T; slope −1 in theory."""
        return self._fit(
            since,
            lambda rows: fit_power(
                [r.length for r in rows],
                [r.bias for r in rows],
                [max(r.bias_se, 1e-12) for r in rows],
            ),
        )

    def second_moment(self, since: float = 1.0) -> Fit:
        """Line through E‖Ĥ‖² against log T; straight in theory."""
        return self._fit(
            since,
            lambda rows: fit_line(
                [math.log(r.length) for r in rows], [r.second_moment for r in rows]
            ),
        )

    def third_moment_slope(self, since: float = 1.0) -> Fit:
        """Line through log E‖Ĥ‖³ against log T; slope at most ½ in theory."""
        return self._fit(
            since, lambda rows: fit_power([r.length for r in rows], [r.third_moment for r in rows])
        )

    def cost_slope(self) -> Fit:
        """Line through log cost against log T; slope 1 for a plain average."""
        return fit_power([r.length for r in self.rungs], [r.cost for r in self.rungs])

    def _fit(self, since: float, fit: Callable[[list[Row]], Fit]) -> Fit:
        def through(ladder: Accuracy) -> Fit:
            return fit([row for row in ladder.rows if row.length >= since])

        generator = torch.Generator().manual_seed(0)
        slopes = []
        for _ in range(_RESAMPLES):
            strata = tuple(s.resampled(generator) for s in self.strata)
            # A ladder whose every bias drowns in noise has no slope.
            with contextlib.suppress(ValueError):
                slopes.append(through(dataclasses.replace(self, strata=strata)).slope)
        if len(slopes) < _RESAMPLES // 2:
            raise ValueError(
                f"no line can be fitted from chain length {since:.0f} on: what is left of the bias "
                "drowns in noise; use more replicates, or start the fit earlier"
            )
        return dataclasses.replace(through(self), slope_se=statistics.stdev(slopes))


def accuracy(
    gradient: MarkovGradient,
    reference: Known,
    x0: Start,
    *context: object,
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
        reference: a problem with an exact gradient, tensors, or a `long_run`.
        x0: where chains start, (rows, *shape); replicates use the rows in turn.
        context: as for `gradient.backward`.
        ladder: values of T, for example 2, 4, …, 1024.
        generator: source of all randomness.
        replicates: chains of length 1; longer ones get fewer, so that all cost about the same.
        least: replicates that the longest chains get nevertheless.
        report: called with the share that is done.
    """
    known = as_reference(reference, gradient)
    sampler = Sampler(gradient, x0, context, generator, replicates, least)
    estimator = gradient.estimator
    ladder = sorted(ladder)
    if not ladder:
        raise ValueError("ladder must hold at least one truncation, got none")
    if isinstance(estimator, (MLMC, MLMCSum)):
        rungs, strata = _multilevel(estimator, sampler, ladder, report)
    elif isinstance(estimator, Average):
        rungs, strata = _average(estimator, sampler, ladder, report)
    else:
        raise TypeError(f"gradient.estimator must be MLMC, MLMCSum or Average, got {estimator!r}")
    return Accuracy(tuple(rungs), tuple(strata), known)


def _multilevel(
    estimator: MLMC | MLMCSum,
    sampler: Sampler,
    ladder: Sequence[int],
    report: Callable[[float], None],
) -> tuple[list[Rung], list[Stratum]]:
    top = dataclasses.replace(estimator, truncation=float(ladder[-1]))
    every = outcomes(top)
    strata: list[Stratum] = []
    for _, level, length in every:
        strata.append(sampler.draw(partial(_at_level, top, level), length))
        report(len(strata) / len(every))
    rungs = []
    for truncation in ladder:
        mlmc = dataclasses.replace(estimator, truncation=float(truncation))
        levels = outcomes(mlmc)
        lengths = mlmc.plan(sampler.replicates, None, sampler.generator).longest
        rungs.append(
            Rung(
                truncation=float(truncation),
                length=levels[-1][2],
                shares=tuple(share for share, _, _ in levels),
                strata=tuple(range(len(levels))),
                cost=float(lengths.double().mean()),
                expected_cost=mlmc.expected_length(),
            )
        )
    return rungs, strata


def outcomes(estimator: MLMC | MLMCSum) -> list[tuple[float, int, int]]:
    """The estimates that may be drawn: probability, a level K that gives it, length."""
    kappa, base = estimator.truncation_level(), estimator.base
    if isinstance(estimator, MLMC):
        law = estimator.levels
        levels = [(law.pmf(k), k, law.length(k, base)) for k in range(1, kappa + 1)]
        # Beyond the truncation: the base term alone.
        return [(law.survival(kappa), kappa + 1, law.length(0, base)), *levels]
    r = estimator.continuation
    return [(r**k * (1.0 - r if k < kappa else 1.0), k, base * 2**k) for k in range(kappa + 1)]


def _at_level(estimator: MLMC | MLMCSum, level: int, chains: int) -> Plan:
    return estimator.plan_for(torch.full((chains,), level))


def _average(
    estimator: Average, sampler: Sampler, ladder: Sequence[int], report: Callable[[float], None]
) -> tuple[list[Rung], list[Stratum]]:
    rungs, strata = [], []
    for i, length in enumerate(ladder):
        average = dataclasses.replace(estimator, length=float(length))
        plan = partial(average.plan, n=None, generator=sampler.generator)
        strata.append(sampler.draw(plan, length))
        cost = float(strata[-1].length)
        rungs.append(Rung(float(length), length, (1.0,), (i,), cost, average.expected_length()))
        report((i + 1) / len(ladder))
    return rungs, strata


def _row(rung: Rung, strata: Sequence[Stratum], known: Reference) -> Row:
    """Put the strata of a rung together with their probabilities."""
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
        bias_low=math.sqrt(max(0.0, squared - _Z * deviation)),
        bias_high=math.sqrt(max(0.0, squared + _Z * deviation)),
        variance=second - float(mean @ mean),
        second_moment=second,
        second_moment_se=math.sqrt(second_variance),
        third_moment=third,
        third_moment_se=math.sqrt(third_variance),
        cost=rung.cost,
        expected_cost=rung.expected_cost,
    )
