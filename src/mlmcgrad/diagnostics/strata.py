"""Sampling by level: moments of an estimator for a ladder of truncations from one set of runs.

The level law is known, so for any function φ

    E[φ(Ĥ)] = Σ_{k≤κ} μ(k) E[φ(Ĥ) | K = k] + P(K > κ) E[φ(H^{(ℓ_0)})],

and the conditional expectations are measured one level at a time. Compared with drawing K this
takes away its share of the variance, which is most of it, and each level serves every truncation.
Longer chains get fewer replicates, so that every level costs about the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.diagnostics.per_chain import chain_gradients, required_parameters
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Context, Start, take
from mlmcgrad.plan import Plan

# Chains simulated at once: bounds the memory and does not change the law of the result.
_CHAINS = 2**15


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

    def resampled(self, generator: torch.Generator) -> Stratum:
        """Another stratum that the same chains might have given, by the normal approximation."""
        z = torch.randn(len(self.mean) + 2, dtype=torch.float64, generator=generator)
        values, vectors = torch.linalg.eigh(self.covariance / self.count)
        shift = vectors @ (values.clamp(min=0.0).sqrt() * z[2:])
        return dataclasses.replace(
            self,
            mean=self.mean + shift,
            second=abs(self.second + float(z[0]) * (self.second_variance / self.count) ** 0.5),
            third=abs(self.third + float(z[1]) * (self.third_variance / self.count) ** 0.5),
        )


@dataclass(frozen=True)
class Sampler:
    """Draws strata of one gradient, from the rows of x0 and context in turn."""

    gradient: MarkovGradient
    x0: Start
    context: Context
    generator: torch.Generator
    replicates: int  # chains of length 1; longer ones get fewer, so that all cost about the same
    least: int  # replicates that the longest chains get nevertheless

    @property
    def rows(self) -> int:
        """How many different starts there are."""
        return self.gradient.kernel.chains(self.x0, self.context)

    def draw(self, plan: Callable[[int], Plan], length: int) -> Stratum:
        """Moments from the replicates that chains of a length get, as many for every row.

        Args:
            plan: makes the plan for a number of chains.
            length: of the chains.
        """
        rounds = math.ceil(max(self.least, self.replicates // length) / self.rows)
        device = required_parameters(self.gradient)[0].device
        per_call = max(1, _CHAINS // self.rows)
        samples, done, longest = [], 0, 0
        while done < rounds:
            now = min(per_call, rounds - done)
            index = torch.arange(self.rows, device=device).repeat(now)
            layout = plan(len(index))
            (x0,) = take((self.x0,), index)
            each, _ = chain_gradients(
                self.gradient, x0, *take(self.context, index), plan=layout, generator=self.generator
            )
            samples.append(each)
            longest = int(layout.longest.max())
            done += now
        return _stratum(torch.cat(samples), longest)


def _stratum(sample: Tensor, length: int) -> Stratum:
    norm = sample.norm(dim=1)
    mean = sample.mean(0)
    centred = sample - mean
    covariance = centred.T @ centred / max(1, len(sample) - 1)
    variance = covariance.diagonal()
    # A coordinate that never varies has no kurtosis; it counts as Gaussian.
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
