"""One row for each family: responses that it can give, and its law as scipy knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor, float64, tensor

from mlmcgrad.mixed.families import (
    Bernoulli,
    Binomial,
    Cloglog,
    Family,
    Gamma,
    Gaussian,
    Logit,
    NegativeBinomial,
    Poisson,
    Probit,
)


@dataclass(frozen=True)
class Case:
    family: Family
    y: tuple[float, ...]
    trials: float = 1.0
    dispersions: tuple[float, ...] = (1.0,)

    @property
    def responses(self) -> Tensor:
        return tensor(self.y, dtype=float64)

    @property
    def counts(self) -> Tensor:
        return tensor([self.trials] * len(self.y), dtype=float64)

    def law(self, eta: float, dispersion: float) -> Any:
        """The law of y as a frozen distribution of scipy."""
        mean = float(self.family.mean(tensor(eta, dtype=float64), tensor(0.0, dtype=float64)))
        match self.family.name:
            case "bernoulli" | "binomial":
                return stats.binom(int(self.trials), mean)
            case "poisson":
                return stats.poisson(mean)
            case "negative_binomial":
                return stats.nbinom(dispersion, dispersion / (dispersion + mean))
            case "gaussian":
                return stats.norm(eta, dispersion)
            case "gamma":
                return stats.gamma(dispersion, scale=mean / dispersion)
            case other:
                raise AssertionError(other)

    def log_prob(self, eta: float, dispersion: float) -> Any:
        law = self.law(eta, dispersion)
        y = np.array(self.y)
        return law.logpdf(y) if hasattr(law.dist, "logpdf") else law.logpmf(y)


LINKS = (Logit(), Probit(), Cloglog())
COUNTS = (0.0, 1.0, 2.0, 7.0, 60.0)
CASES = {
    **{f"bernoulli-{link.name}": Case(Bernoulli(link), (0.0, 1.0)) for link in LINKS},
    **{f"binomial-{link.name}": Case(Binomial(link), (0.0, 1.0, 4.0, 9.0), 9.0) for link in LINKS},
    "poisson": Case(Poisson(), COUNTS),
    "negative_binomial": Case(NegativeBinomial(), COUNTS, dispersions=(0.2, 1.0, 30.0, 5e3)),
    "gaussian": Case(Gaussian(), (-3.0, 0.0, 0.7, 40.0), dispersions=(0.1, 1.0, 20.0)),
    "gamma": Case(Gamma(), (1e-3, 0.4, 2.0, 50.0), dispersions=(0.2, 1.0, 30.0, 5e3)),
}
