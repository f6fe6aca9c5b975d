"""The multilevel test of Giles: the contribution of each level, and their consistency.

For level k, D_k = H^{(ℓ_k)} − H^{(ℓ_{k−1})} of one chain. The test measures for each level the norm
of E[D_k], the variance of D_k and of H^{(ℓ_k)} (traces), the kurtosis of D_k (if it is large, the
variance is unreliable), the cost, and the consistency check

    max_i |E[H^{(ℓ_k)}]_i − E[H^{(ℓ_{k−1})}]_i − E[D_k]_i| / (3 (s_1 + s_2 + s_3)_i),

from three independent sets of chains with standard errors s: above 1 the levels do not telescope,
that is, the kernel or the weights are wrong. Longer chains get fewer replicates, so that every
level costs about the same.

Reference: Giles (2015), "Multilevel Monte Carlo methods", Section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mlmcgrad._checks import whole
from mlmcgrad.diagnostics._pilot import Simulator
from mlmcgrad.diagnostics._report import Report, Table
from mlmcgrad.estimators import Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start
from mlmcgrad.lengths import Lengths
from mlmcgrad.levels import Geometric, LevelLaw

_CHAINS = 2**15  # simulated at once, to bound the memory


@dataclass(frozen=True)
class LevelRow:
    """Measurements of one level, where D_k = H^{(ℓ_k)} − H^{(ℓ_{k−1})}."""

    level: int
    length: int
    mean: float  # ‖E[D_k]‖
    mean_se: float
    variance: float  # of D_k
    variance_average: float  # of H^{(ℓ_k)}
    kurtosis: float
    check: float  # above 1 the levels do not telescope
    replicates: int


@dataclass(frozen=True)
class LevelTest(Report):
    """The result of `level_test`."""

    rows: tuple[LevelRow, ...]

    @property
    def consistent(self) -> bool:
        """Whether every check is below 1."""
        return all(row.check < 1.0 for row in self.rows)

    def _parts(self) -> list[str | Table]:
        head = (
            "k",
            "length",
            "mean ± s.e.",
            "variance",
            "of the average",
            "kurtosis",
            "check",
            "chains",
        )
        rows = [
            (
                f"{row.level}",
                f"{row.length}",
                f"{row.mean:.3g} ± {row.mean_se:.1g}",
                *(f"{x:.3g}" for x in (row.variance, row.variance_average, row.kurtosis)),
                f"{row.check:.2g}",
                f"{row.replicates}",
            )
            for row in self.rows
        ]
        verdict = "The levels telescope." if self.consistent else "The levels do NOT telescope."
        return ["Differences of levels", Table([head, *rows]), verdict]


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
    """Measure the levels 0, …, `highest`, and check that they telescope.

    Args:
        gradient: with `parameters` given; its kernel and loss are used.
        x0: where chains start, (rows, *shape); replicates use the rows in turn.
        context: as for `gradient.backward`.
        highest: the last level.
        generator: source of all randomness.
        levels: distribution of the level, which determines the lengths; by default geometric.
        base: length of the chains of level 0.
        replicates: number of chains of length 1; longer chains get fewer.
        least: minimum number of chains of each length.
        report: called with the completed share.
    """
    whole(highest, "highest", least=0)
    for value, name in ((base, "base"), (replicates, "replicates"), (least, "least")):
        whole(value, name)
    law = levels or Geometric()
    sampler = Sampler(gradient, x0, context, generator, replicates, least)

    def average(k: int) -> Stratum:
        length = law.length(k, base)
        lengths = Average(length).draw
        return sampler.draw(lambda chains: lengths(chains, None, generator), length)

    shorter = average(0)
    rows = [_row(0, shorter, shorter, 0.0)]
    for k in range(1, highest + 1):
        difference = sampler.draw(partial(difference_lengths, law, k, base), law.length(k, base))
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


def difference_lengths(law: LevelLaw, k: int, base: int, chains: int) -> Lengths:
    """Return the lengths and weights of D_k = H^{(ℓ_k)} − H^{(ℓ_{k−1})}."""
    short, long = law.length(k - 1, base), law.length(k, base)
    weights = torch.tensor([[-1.0 / short, 1.0 / long]], dtype=torch.float64)
    return Lengths(
        levels=torch.full((chains,), k),
        terms=torch.tensor([[short, long]]).expand(chains, 2),
        weights=weights.expand(chains, 2),
    )


def _row(k: int, difference: Stratum, average: Stratum, check: float) -> LevelRow:
    variance = float(difference.covariance.trace())
    # The noise adds its variance to the squared norm of a measured mean.
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


@dataclass(frozen=True)
class Stratum:
    """Moments of independent per-chain estimates Ĥ, (replicates, d)."""

    count: int
    length: int
    mean: Tensor  # (d,)
    covariance: Tensor  # (d, d), of one estimate
    second: float  # E‖Ĥ‖²
    second_variance: float  # variance of ‖Ĥ‖²
    third: float  # E‖Ĥ‖³
    third_variance: float
    kurtosis: float  # largest over the coordinates; 3 for a Gaussian


@dataclass(frozen=True)
class Sampler(Simulator):
    """Draws chains of different lengths, for about the same cost."""

    replicates: int  # chains of length 1; longer chains get fewer
    least: int  # minimum number of chains of each length

    def draw(self, lengths: Callable[[int], Lengths], length: int) -> Stratum:
        """Draw the chains of one length, equally many for each row, and return their moments."""
        rounds = math.ceil(max(self.least, self.replicates // length) / self.rows)
        index = torch.arange(self.rows, device=self.parameters[0].device).repeat(rounds)
        parts = index.split(self.rows * max(1, _CHAINS // self.rows))
        samples = [self.at(part).simulate(lengths(len(part)))[0] for part in parts]
        return _stratum(torch.cat(samples), length)


def _stratum(sample: Tensor, length: int) -> Stratum:
    norm = sample.norm(dim=1)
    mean = sample.mean(0)
    centred = sample - mean
    covariance = centred.T @ centred / max(1, len(sample) - 1)
    variance = covariance.diagonal()
    # A constant coordinate has no kurtosis; it counts as Gaussian.
    kurtosis = torch.where(variance > 0.0, (centred**4).mean(0) / variance**2, 3.0)
    return Stratum(
        count=len(sample),
        length=length,
        mean=mean.cpu(),
        covariance=covariance.cpu(),
        second=float((norm**2).mean()),
        second_variance=float((norm**2).var()),
        third=float((norm**3).mean()),
        third_variance=float((norm**3).var()),
        kurtosis=float(kurtosis.max()),
    )
