"""A fitted mixed-effects model: estimates, their errors, and what can be done with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mlmcgrad.mixed.columns import Data
from mlmcgrad.mixed.design import Coding, Design
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.likelihood import Likelihood
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.scale import Scale
from mlmcgrad.mixed.search import Certificate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mlmcgrad.mixed.compare import Comparison

INTERRUPTED = "interrupted"
_NORMAL = 1.959963984540054  # the 97.5 % point


@dataclass(frozen=True)
class Step:
    """One iteration of a search, in the user's units."""

    iteration: int
    averaging: bool
    theta: Tensor
    noise: float  # largest Monte Carlo error in standard errors; infinite while it is not known
    names: tuple[str, ...]  # of the fixed effects

    @property
    def text(self) -> str:
        """The first few estimates."""
        pairs = zip(self.names[:4], self.theta.tolist(), strict=False)
        return ", ".join(f"{name} {value:.3g}" for name, value in pairs)


@dataclass(frozen=True)
class Factor:
    """A grouping factor: its groups, and the random effects that each of them has."""

    name: str
    groups: tuple[str, ...]
    terms: tuple[str, ...]
    mean: Tensor  # (groups, terms): of the random effects, given the data
    sd: Tensor  # (groups, terms)


@dataclass(frozen=True)
class Live:
    """What a fit has in memory and not in its file."""

    design: Design
    likelihood: Likelihood
    scale: Scale
    theta: Tensor  # in the units of the search
    stopped: KeyboardInterrupt | None = None  # what ended the search


@final
@dataclass(frozen=True)
class Fit:
    """A fitted model; `print` shows its table.

    Attributes:
        coding: formula and coding of the data.
        family: of the response.
        factors: the grouping factors.
        names: of the fixed effects.
        layout: of θ = (β, entries of Λ, log dispersion).
        theta: the estimate.
        parameter_covariance: inverse of the observed information, (θ, θ).
        monte_carlo_covariance: of the estimate about the maximum, (θ, θ).
        certificate: how far the maximum is from the estimate, by scores that had no part in it;
            None if the search did not get that far.
        log_likelihood: its value and its Monte Carlo error.
        problem: why the search ended before it reached its tolerance, or None.
        notes: what is worth knowing: rows that were left out, a standard deviation of 0.
        rows: number of rows.
        iterations: of the search.
        seconds: it took.
        seed: of its randomness.
        path: the iterations.
        live: the data, for `simulate` and `compare`; None in a fit that was loaded.
    """

    coding: Coding
    family: Family
    factors: tuple[Factor, ...]
    names: tuple[str, ...]
    layout: Layout
    theta: Tensor
    parameter_covariance: Tensor
    monte_carlo_covariance: Tensor
    certificate: Certificate | None
    log_likelihood: tuple[float, float]
    problem: str | None
    notes: tuple[str, ...]
    rows: int
    iterations: int
    seconds: float = 0.0
    seed: int = 0
    path: tuple[Step, ...] = field(default=(), repr=False)
    live: Live | None = field(default=None, repr=False)

    @property
    def interrupted(self) -> bool:
        """Whether the search was interrupted."""
        return self.problem is not None and self.problem.startswith(INTERRUPTED)

    @property
    def formula(self) -> str:
        """The formula."""
        return self.coding.formula

    @property
    def parameters(self) -> int:
        """How many were estimated."""
        return self.layout.size

    @property
    def fixed(self) -> pd.Series:
        """Estimates of the fixed effects, by name."""
        return self._series(self.theta)

    @property
    def standard_errors(self) -> pd.Series:
        """Of the fixed effects, from the observed information."""
        return self._series(_root(self.parameter_covariance))

    @property
    def monte_carlo_errors(self) -> pd.Series:
        """Of the fixed effects: standard deviations of the estimate about the maximum."""
        return self._series(_root(self.monte_carlo_covariance))

    @property
    def intervals(self) -> pd.DataFrame:
        """95 % intervals of the fixed effects, columns `low` and `high`."""
        width = _NORMAL * self.standard_errors
        return pd.DataFrame({"low": self.fixed - width, "high": self.fixed + width})

    @property
    def covariance(self) -> dict[str, pd.DataFrame]:
        """For each factor, the covariance of its random effects."""
        factor = self.layout.factor(self.theta)
        whole = factor @ factor.T
        return {
            f.name: pd.DataFrame(whole[part, part].numpy(), f.terms, f.terms)
            for f, part in self._parts()
        }

    @property
    def sd(self) -> dict[str, pd.Series]:
        """For each factor, the standard deviations of its random effects."""
        sds = self.layout.sds(self.theta)
        return {f.name: pd.Series(sds[part].numpy(), f.terms) for f, part in self._parts()}

    @property
    def sd_intervals(self) -> dict[str, pd.DataFrame]:
        """95 % intervals of the standard deviations, made on the log scale: `low` and `high`.

        NaN for a standard deviation of 0.
        """
        sds, errors = self.layout.sds(self.theta), self.log_sd_errors
        low, high = sds * (-_NORMAL * errors).exp(), sds * (_NORMAL * errors).exp()
        columns = {"low": low, "high": high}
        return {
            f.name: pd.DataFrame({n: v[part].numpy() for n, v in columns.items()}, f.terms)
            for f, part in self._parts()
        }

    @property
    def log_sd_errors(self) -> Tensor:
        """Standard errors of the logarithms of the standard deviations, of all factors, (q,)."""
        entries = len(self.layout.entries[0])
        part = slice(self.layout.fixed, self.layout.fixed + entries)
        row, _ = self.layout.entries
        sds = self.layout.sds(self.theta)
        # ∂ log sd_i/∂Λ_ij = Λ_ij / sd_i²
        gradient = torch.zeros(self.layout.random, entries, dtype=torch.float64)
        gradient[row, torch.arange(entries)] = self.theta[part] / sds[row].square()
        variance = (gradient @ self.parameter_covariance[part, part] * gradient).sum(1)
        return torch.where(sds > 0.0, variance.sqrt(), torch.nan)

    @property
    def correlation(self) -> dict[str, pd.DataFrame]:
        """For each factor, the correlations of its random effects."""
        found = {}
        for name, covariance in self.covariance.items():
            sd = np.sqrt(np.diag(covariance))
            with np.errstate(invalid="ignore"):
                found[name] = covariance.div(np.outer(sd, sd))
        return found

    @property
    def dispersion(self) -> pd.Series | None:
        """The dispersion: `estimate`, `low`, `high` (on the log scale); None if there is none."""
        if not self.layout.dispersion:
            return None
        log, error = float(self.theta[-1]), float(_root(self.parameter_covariance)[-1])
        values = [math.exp(log + _NORMAL * error * sign) for sign in (0.0, -1.0, 1.0)]
        return pd.Series(values, ["estimate", "low", "high"], name=self.family.dispersion)

    @property
    def aic(self) -> float:
        """−2 log-likelihood + 2 parameters."""
        return -2.0 * self.log_likelihood[0] + 2.0 * self.parameters

    @property
    def bic(self) -> float:
        """−2 log-likelihood + parameters · log(rows)."""
        return -2.0 * self.log_likelihood[0] + self.parameters * math.log(self.rows)

    def random_effects(self) -> dict[str, pd.DataFrame]:
        """For each factor, the mean of the random effects of each group given the data.

        The columns "… sd" have their standard deviations given the data.
        """
        found = {}
        for f in self.factors:
            columns = {t: f.mean[:, i].numpy() for i, t in enumerate(f.terms)}
            columns |= {f"{t} sd": f.sd[:, i].numpy() for i, t in enumerate(f.terms)}
            found[f.name] = pd.DataFrame(columns, index=pd.Index(f.groups, name=f.name))
        return found

    def predict(
        self, new: Data | None = None, *, linear: bool = False, random: bool = True
    ) -> pd.Series:
        """The mean response of rows, with the random effects of their groups at their means.

        Args:
            new: rows, of which no response is needed; by default those of the fit. A group that
                the fit has not seen has the random effects 0.
            linear: the linear predictor instead.
            random: False has all random effects at 0.
        """
        from mlmcgrad.mixed.predict import predict

        return predict(self, new, linear=linear, random=random)

    def simulate(self, new: Data | None = None, *, seed: int = 0) -> pd.Series:
        """Responses of the fitted model, with new random effects for all groups.

        Args:
            new: rows, of which no response is needed; by default those of the fit.
            seed: of the randomness.
        """
        from mlmcgrad.mixed.predict import simulate

        return simulate(self, new, seed=seed)

    def compare(self, other: Fit) -> Comparison:
        """The likelihood-ratio test of this model and another one for the same responses."""
        from mlmcgrad.mixed.compare import compare

        return compare(self, other)

    def plot(self) -> Figure:
        """Paths of the estimates with their bands, and the random effects of the first factor."""
        from mlmcgrad.mixed.figures import plot

        return plot(self)

    def save(self, path: str | Path) -> None:
        """Write the fit, without the data, to a JSON file; `mixed.load` reads it."""
        from mlmcgrad.mixed.files import save

        save(self, path)

    def __str__(self) -> str:
        from mlmcgrad.mixed.table import table

        return table(self)

    def _series(self, values: Tensor) -> pd.Series:
        return pd.Series(values[: self.layout.fixed].numpy(), self.names)

    def _parts(self) -> list[tuple[Factor, slice]]:
        """The factors, and where their effects are among all."""
        ends = np.cumsum([len(f.terms) for f in self.factors]).tolist()
        starts = [0, *ends[:-1]]
        return [(f, slice(a, b)) for f, a, b in zip(self.factors, starts, ends, strict=True)]


def _root(covariance: Tensor) -> Tensor:
    return covariance.diagonal().clamp(min=0.0).sqrt()
