"""The multilevel test of Giles: what each level contributes, and whether the levels fit together.

For level k, D_k = H^{(ℓ_k)} − H^{(ℓ_{k−1})} of one chain. Measured for each level: the norm of
E[D_k], the variance of D_k and of H^{(ℓ_k)} (traces), the kurtosis of D_k (large: the variance is
not to be trusted), the cost, and the consistency check

    max_i |E[H^{(ℓ_k)}]_i − E[H^{(ℓ_{k−1})}]_i − E[D_k]_i| / (3 (s_1 + s_2 + s_3)_i),

from three independent sets of chains with standard errors s: above 1 the levels do not telescope,
that is, the kernel or the weights are wrong.

Reference: Giles (2015), "Multilevel Monte Carlo methods", Section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from mlmcgrad.diagnostics.slopes import Fit, fit_power
from mlmcgrad.diagnostics.strata import Sampler, Stratum
from mlmcgrad.estimators import Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start
from mlmcgrad.levels import Geometric, LevelLaw
from mlmcgrad.plan import Plan


@dataclass(frozen=True)
class LevelRow:
    """One level; see the module for the meaning."""

    level: int
    length: int
    mean: float  # ‖E[D_k]‖
    mean_se: float
    variance: float  # of D_k
    variance_average: float  # of H^{(ℓ_k)}
    kurtosis: float
    check: float
    replicates: int


@dataclass(frozen=True)
class LevelTest:
    """All levels, and the exponents that decide how multilevel Monte Carlo fares."""

    rows: tuple[LevelRow, ...]

    @property
    def consistent(self) -> bool:
        """Whether every check is below 1."""
        return all(row.check < 1.0 for row in self.rows)

    def mean_decay(self, since: float = 2.0) -> Fit:
        """Line through log ‖E[D_k]‖ against log ℓ_k; slope −1 for a chain that mixes."""
        rows = self._differences(since)
        return fit_power(
            [r.length for r in rows], [r.mean for r in rows], [max(r.mean_se, 1e-12) for r in rows]
        )

    def variance_decay(self, since: float = 2.0) -> Fit:
        """Line through log Var D_k against log ℓ_k; slope −1 for a chain that mixes."""
        rows = self._differences(since)
        return fit_power([r.length for r in rows], [r.variance for r in rows])

    def _differences(self, since: float) -> list[LevelRow]:
        return [row for row in self.rows[1:] if row.length >= since]


def level_test(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    highest: int,
    generator: torch.Generator,
    levels: LevelLaw | None = None,
    base: int = 1,
    replicates: int = 50_000,
    least: int = 1000,
    report: Callable[[float], None] = lambda share: None,
) -> LevelTest:
    """Measure the levels 0 … `highest`.

    Args:
        gradient: with `parameters` given; its kernel and loss are used.
        x0: where chains start, (rows, *shape); replicates use the rows in turn.
        context: as for `gradient.backward`.
        highest: the last level.
        generator: source of all randomness.
        levels: law of the level; it determines the lengths.
        base: chain length at which the ladder starts.
        replicates: chains of length 1; longer ones get fewer.
        least: replicates that the longest chains get nevertheless.
        report: called with the share that is done.
    """
    law = levels or Geometric()
    sampler = Sampler(gradient, x0, context, generator, replicates, least)

    def average(k: int) -> Stratum:
        length = law.length(k, base)
        plan = Average(length).plan
        return sampler.draw(lambda chains: plan(chains, None, generator), length)

    shorter = average(0)
    rows = [_row(0, shorter, shorter, 0.0)]
    for k in range(1, highest + 1):
        difference = sampler.draw(partial(difference_plan, law, k, base), law.length(k, base))
        longer, again = average(k), average(k - 1)
        gap = (longer.mean - again.mean - difference.mean).abs()
        errors = sum(
            (s.covariance.diagonal().div(s.count).sqrt() for s in (longer, again, difference)),
            torch.zeros_like(gap),
        )
        check = torch.where(gap > 0.0, gap / (3.0 * errors), 0.0).max()
        rows.append(_row(k, difference, longer, float(check)))
        report(k / highest)
    return LevelTest(tuple(rows))


def difference_plan(law: LevelLaw, k: int, base: int, chains: int) -> Plan:
    """The plan of D_k = H^{(ℓ_k)} − H^{(ℓ_{k−1})}."""
    short, long = law.length(k - 1, base), law.length(k, base)
    weights = torch.tensor([[-1.0 / short, 1.0 / long]], dtype=torch.float64)
    return Plan(
        levels=torch.full((chains,), k),
        lengths=torch.tensor([[short, long]]).expand(chains, 2),
        weights=weights.expand(chains, 2),
    )


def _row(k: int, difference: Stratum, average: Stratum, check: float) -> LevelRow:
    variance = float(difference.covariance.trace())
    # Without the noise that the norm of a measured vector has: see ladder.py.
    squared = float(difference.mean @ difference.mean) - variance / difference.count
    return LevelRow(
        level=k,
        length=average.length,
        mean=max(squared, 0.0) ** 0.5,
        mean_se=(variance / difference.count) ** 0.5,
        variance=variance,
        variance_average=float(average.covariance.trace()),
        kurtosis=difference.kurtosis,
        check=check,
        replicates=difference.count,
    )
