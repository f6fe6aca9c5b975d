"""A fitted mixed-effects model: estimates, their errors, predictions, tests, and its file.

The names are those of statsmodels where it has one. `params`, `bse`, `tvalues`, `pvalues`,
`conf_int()` and `cov_params()` are about the fixed effects.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final, get_type_hints

import numpy as np
import pandas as pd
import torch
from scipy.special import chdtrc, ndtr, ndtri, roots_hermitenorm
from torch import Tensor

from mlmcgrad.mixed import files
from mlmcgrad.mixed.columns import Data
from mlmcgrad.mixed.design import Coding, Design
from mlmcgrad.mixed.families import Bernoulli, Binomial, Family, NegativeBinomial, Poisson
from mlmcgrad.mixed.families import family as family_of
from mlmcgrad.mixed.figures import plot
from mlmcgrad.mixed.formula import printable
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.search import FitCertificate, LogLikelihood
from mlmcgrad.mixed.table import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERRUPTED = "interrupted"
_NORMAL = 1.959963984540054  # the 97.5 % quantile
_WIDEST_LOG = 2.0  # standard error of a logarithm above which there is no interval
_NODES = 200  # of quadrature, for a marginal mean
_SIMULATE = "no simple law is known; use compare(..., simulate=200)"


@final
class ConvergenceWarning(UserWarning):
    """The search for the maximum did not converge; `Fit.problem` says why."""


@dataclass(frozen=True)
class FitStep:
    """One iteration of the search, in the user's units."""

    iteration: int
    averaging: bool
    theta: Tensor
    noise: float  # largest Monte Carlo error in standard errors; infinite before it is estimated
    names: tuple[str, ...]  # of the fixed effects

    @property
    def text(self) -> str:
        """The first few estimates, and the Monte Carlo error."""
        pairs = zip(self.names[:4], self.theta.tolist(), strict=False)
        estimates = ", ".join(f"{name} {value:.3g}" for name, value in pairs)
        error = f", error {self.noise:.3f} standard errors" if math.isfinite(self.noise) else ""
        return printable(f"iteration {self.iteration}: {estimates}{error}")


@dataclass(frozen=True)
class Factor:
    """A grouping factor: its groups, and the random effects of each group."""

    name: str
    groups: tuple[str, ...]
    terms: tuple[str, ...]
    mean: Tensor  # (groups, terms): of the random effects, given the data
    sd: Tensor  # (groups, terms)


@dataclass(frozen=True)
class Live:
    """The part of a fit that exists in memory only, not in its file."""

    design: Design
    value: LogLikelihood
    refit: Callable[[Tensor, int], Fit]  # to another response, with a seed
    stopped: KeyboardInterrupt | None = None  # the interrupt that ended the search


@final
class FitSummary(str):
    """The table of a fit; shown as a table in a console and in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


@final
@dataclass(frozen=True)
class LikelihoodRatioTest:
    """Twice the difference of two log-likelihoods, larger model minus smaller one.

    If the smaller model is true, and does not fix a variance at 0, the law of the statistic is χ²
    with k degrees of freedom, k parameters being added. A variance of 0 is on the boundary of the
    parameter space. If one variance is fixed there, alone or with its covariances, the law is the
    mixture ½χ²_{k−1} + ½χ²_k (Stram and Lee, 1994). So it is for negative binomial against Poisson
    responses. In other cases no simple law is known: `Fit.compare(..., simulate=200)` draws from
    it.

    Attributes:
        statistic: the statistic.
        error: its Monte Carlo standard error.
        degrees: the number of parameters that the larger model adds.
        p_value: NaN if no law is known, or if the models are not nested.
        law: the law behind the p-value, or why there is none.
    """

    statistic: float
    error: float
    degrees: int
    p_value: float
    law: str

    def __str__(self) -> str:
        end = f"no p-value: {self.law}"
        if not math.isnan(self.p_value):
            end = f"p = {self.p_value:.4g} ({self.law})"
        return (
            f"2 × difference of log-likelihoods {self.statistic:.3f} ± {self.error:.2g}, "
            f"{self.degrees} more parameters; {end}"
        )


@final
@dataclass(frozen=True)
class Fit:
    """A fitted model; `print` shows its table.

    Attributes:
        coding: the formula and the coding of the data.
        family: the family of the response.
        factors: the grouping factors.
        names: names of the fixed effects.
        layout: the layout of θ = (β, entries of Λ, log dispersion).
        theta: the estimate of θ.
        parameter_covariance: inverse of the observed information, (θ, θ).
        standard_error_noise: Monte Carlo error of each standard error, relative to it, (θ,).
        monte_carlo_covariance: covariance of the estimate about the maximum, (θ, θ).
        certificate: a test of the estimate by independent scores; None if the search ended early.
        llf: the log-likelihood.
        llf_se: its Monte Carlo standard error.
        problem: why the search did not converge, or None.
        notes: remarks, such as rows left out or a standard deviation of 0.
        nobs: number of rows.
        iterations: number of iterations.
        seconds: duration of the fit.
        seed: seed of all randomness.
        path: the iterations.
        live: the data, for `simulate` and `compare`; None in a loaded fit.
    """

    coding: Coding
    family: Family
    factors: tuple[Factor, ...]
    names: tuple[str, ...]
    layout: Layout
    theta: Tensor
    parameter_covariance: Tensor
    standard_error_noise: Tensor
    monte_carlo_covariance: Tensor
    certificate: FitCertificate | None
    llf: float
    llf_se: float
    problem: str | None
    notes: tuple[str, ...]
    nobs: int
    iterations: int
    seconds: float
    seed: int
    path: tuple[FitStep, ...] = field(default=(), repr=False)
    live: Live | None = field(default=None, repr=False)

    @property
    def converged(self) -> bool:
        """Whether the search reached its tolerance and the certificate holds."""
        return self.problem is None

    @property
    def interrupted(self) -> bool:
        """Whether the search was interrupted."""
        return self.problem is not None and self.problem.startswith(INTERRUPTED)

    @property
    def formula(self) -> str:
        """The formula."""
        return self.coding.formula

    @property
    def df(self) -> int:
        """Number of estimated parameters: fixed effects, entries of Λ, dispersion."""
        return self.layout.size

    @property
    def params(self) -> pd.Series:
        """Estimates of the fixed effects, by name."""
        return self._series(self.theta)

    @property
    def bse(self) -> pd.Series:
        """Standard errors of the fixed effects, from the observed information."""
        return self._series(_root(self.parameter_covariance))

    @property
    def monte_carlo_errors(self) -> pd.Series:
        """Standard deviations of the fixed effects about the maximum of the likelihood."""
        return self._series(_root(self.monte_carlo_covariance))

    @property
    def tvalues(self) -> pd.Series:
        """Estimates of the fixed effects over their standard errors (z statistics)."""
        return self.params / self.bse.where(self.bse > 0.0)

    @property
    def pvalues(self) -> pd.Series:
        """Two-sided p-values of the fixed effects, from the normal distribution."""
        return 2.0 * ndtr(-self.tvalues.abs())

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """Return intervals of the fixed effects with coverage 1 − alpha; columns 0 and 1."""
        if not 0.0 < alpha < 1.0:
            raise ValueError(f"alpha must lie strictly between 0 and 1, got {alpha!r}")
        width = float(ndtri(1.0 - alpha / 2.0)) * self.bse
        return pd.DataFrame({0: self.params - width, 1: self.params + width})

    def cov_params(self) -> pd.DataFrame:
        """Return the covariance of the fixed effects, from the observed information."""
        part = self.parameter_covariance[: self.layout.fixed, : self.layout.fixed]
        return pd.DataFrame(part.numpy(), self.names, self.names)

    @property
    def covariance(self) -> dict[str, pd.DataFrame]:
        """For each factor, the covariance of its random effects."""
        factor = self.layout.factor(self.theta)
        whole = (factor @ factor.T).numpy()
        return {
            f.name: pd.DataFrame(whole[part, part], f.terms, f.terms) for f, part in self._parts()
        }

    @property
    def sd(self) -> dict[str, pd.Series]:
        """For each factor, the standard deviations of its random effects."""
        sds = self.layout.sds(self.theta)
        return {f.name: pd.Series(sds[part].numpy(), f.terms) for f, part in self._parts()}

    @property
    def sd_intervals(self) -> dict[str, pd.DataFrame]:
        """95 % intervals of the standard deviations, computed on the log scale: `low` and `high`.

        NaN where they are not estimable: the standard deviation is 0, or so near it that its
        logarithm has a standard error above 2.
        """
        width = _estimable(_NORMAL * self.log_sd_errors)
        ends = torch.stack([(-width).exp(), width.exp()], 1)
        ends *= self.layout.sds(self.theta)[:, None]
        return {
            f.name: pd.DataFrame(ends[part].numpy(), f.terms, ["low", "high"])
            for f, part in self._parts()
        }

    @property
    def log_sd_errors(self) -> Tensor:
        """Standard errors of the log standard deviations of all factors, (q,)."""
        row, _ = self.layout.entries
        part = slice(self.layout.fixed, self.layout.fixed + len(row))
        sds = self.layout.sds(self.theta)
        # ∂ log sd_i/∂Λ_ij = Λ_ij / sd_i²
        gradient = sds.new_zeros(len(sds), len(row))
        gradient[row, torch.arange(len(row))] = self.theta[part] / sds[row].square()
        variance = (gradient @ self.parameter_covariance[part, part] * gradient).sum(1)
        return torch.where(sds > 0.0, variance.sqrt(), torch.nan)

    @property
    def correlation(self) -> dict[str, pd.DataFrame]:
        """For each factor, the correlations of its random effects."""
        with np.errstate(invalid="ignore"):
            return {
                name: covariance.div(np.outer(self.sd[name], self.sd[name]))
                for name, covariance in self.covariance.items()
            }

    @property
    def dispersion(self) -> pd.Series | None:
        """The dispersion: `estimate`, `low`, `high` (on the log scale); None if there is none.

        `low` and `high` are NaN where they are not estimable: the logarithm of the dispersion has a
        standard error above 2.
        """
        if not self.layout.dispersion:
            return None
        width = _estimable(_NORMAL * _root(self.parameter_covariance)[-1])
        log = self.theta[-1]
        values = torch.stack([log, log - width, log + width]).exp()
        return pd.Series(values.numpy(), ["estimate", "low", "high"], name=self.family.dispersion)

    @property
    def aic(self) -> float:
        """−2 llf + 2 df."""
        return -2.0 * self.llf + 2.0 * self.df

    @property
    def bic(self) -> float:
        """−2 llf + df · log(nobs)."""
        return -2.0 * self.llf + self.df * math.log(self.nobs)

    @property
    def theta_names(self) -> tuple[str, ...]:
        """A name for each entry of θ."""
        factors = [(f.name, f.terms) for f in self.factors]
        return theta_names(self.names, factors, self.layout, self.family)

    def random_effects(self) -> dict[str, pd.DataFrame]:
        """Return for each factor the mean of the random effects of each group given the data.

        The columns "… sd" have their standard deviations given the data.
        """
        return {
            f.name: pd.DataFrame(
                torch.cat([f.mean, f.sd], 1).numpy(),
                pd.Index(f.groups, name=f.name),
                [*f.terms, *(f"{term} sd" for term in f.terms)],
            )
            for f in self.factors
        }

    def predict(
        self,
        new: Data | None = None,
        *,
        type: Literal["conditional", "marginal", "fixed"] = "conditional",  # noqa: A002
        linear: bool = False,
    ) -> pd.Series:
        """Predict the mean response of rows; for binomial rows, the probability of a success.

        Args:
            new: rows, which need no response; by default those of the fit.
            type: "conditional" is the mean given the group, whose random effects are at their
                posterior means. The random effects of an unknown group are 0, which gives the
                response of a typical group. "marginal" is the mean over all groups there could be,
                an integral over the random effects. "fixed" sets all random effects to 0.
            linear: return the linear predictor instead of the mean.
        """
        if type not in ("conditional", "marginal", "fixed"):
            raise ValueError(f"type must be conditional, marginal or fixed, got {type!r}")
        design = self._design(new)
        eta = design.offset + design.fixed @ self.layout.beta(self.theta)
        if type == "conditional":
            for e, f in zip(design.effects, self.factors, strict=True):
                # Unknown groups follow those of the fit; the last row is for −1, no group.
                unknown = f.mean.new_zeros(len(e.groups) - len(f.groups) + 1, len(f.terms))
                eta = eta + (e.columns * torch.cat([f.mean, unknown])[e.index]).sum(1)
        what = (
            design.response
            if self.coding.success is None
            else (f"{design.response} = {self.coding.success}")
        )
        if linear:
            return pd.Series(eta.numpy(), name="linear predictor")
        log_dispersion = self.layout.log_dispersion(self.theta)
        values = self.family.mean(eta, log_dispersion)
        if type == "marginal":
            spread = self._spread(design)
            # zᵀb is one normal number per row, so its mean is an integral over a line.
            nodes, weights = roots_hermitenorm(_NODES)
            values = torch.zeros_like(eta)
            for node, weight in zip(nodes, weights / weights.sum(), strict=True):
                values += weight * self.family.mean(eta + node * spread, log_dispersion)
        kind = "probability" if isinstance(self.family, (Bernoulli, Binomial)) else "mean"
        label = f"marginal {kind}" if type == "marginal" else kind
        return pd.Series(values.numpy(), name=f"{label} of {what}")

    def simulate(self, new: Data | None = None, *, seed: int = 0) -> pd.Series:
        """Draw responses of the fitted model, with new random effects for all groups.

        Args:
            new: rows, which need no response; by default those of the fit. A row without a group is
                a group of its own.
            seed: seed of the randomness.
        """
        design = self._design(new)
        y = self._draw(design, torch.Generator().manual_seed(seed))
        return pd.Series(y.numpy(), name=design.response)

    def compare(self, other: Fit, *, simulate: int = 0, seed: int = 0) -> LikelihoodRatioTest:
        """Test this model against a nested or larger one for the same responses.

        Both log-likelihoods are estimated with the same random numbers.

        Args:
            other: the other fit.
            simulate: number of data sets to draw from the smaller model; both models are fitted to
                each, and the p-value is the share of larger statistics (a parametric bootstrap).
                200 take about 400 times as long as a fit. By default the p-value is that of the law
                for many data, where one is known.
            seed: seed of the simulation.
        """
        small, large = sorted((self, other), key=lambda fit: fit.df)
        degrees = large.df - small.df
        if degrees == 0:
            raise ValueError(
                f"other must have more or fewer parameters than this model, but both have {self.df}"
                "; compare their AIC instead"
            )
        if small.live is None or large.live is None:
            raise ValueError("other: a loaded fit has no data to compare on; fit it again")
        if not torch.equal(small.live.design.y, large.live.design.y):
            raise ValueError(
                f"other must be a fit of the same responses, got {self.nobs} and {other.nobs} rows;"
                " leave out the rows with missing values from both"
            )
        difference, error = large.live.value.minus(small.live.value)
        statistic, boundary = 2.0 * difference, _on_boundary(small, large)
        law, p_value = _law(statistic, degrees, boundary)
        if (
            boundary is not None
            and boundary < 2
            and bool((small.theta[small.layout.diagonal] == 0.0).any())
        ):
            law, p_value = f"a standard deviation of the smaller model is 0; {_SIMULATE}", math.nan
        if simulate:
            if boundary is None:
                raise ValueError("simulate must be 0, because the models are not nested")
            drawn = np.array(list(_bootstrap(small, large, simulate, seed)))
            p_value = float((1 + (drawn >= statistic).sum()) / (1 + len(drawn)))
            law = f"{len(drawn)} simulated data sets"
        return LikelihoodRatioTest(statistic, 2.0 * error, degrees, p_value, law)

    def plot(self) -> Figure:
        """Plot the paths of the estimates, and the random effects of the first factor."""
        return plot(self)

    def save(self, path: str | Path) -> None:
        """Write the fit, without the data, to a JSON file; `mixed.load` reads it."""
        link = getattr(getattr(self.family, "link", None), "name", None)
        family = {"family": self.family.name, "link": link}
        files.write(path, family | {name: getattr(self, name) for name in _stored()})

    def summary(self) -> FitSummary:
        """Return the table of estimates, random effects, log-likelihood and certificate."""
        return FitSummary(table(self))

    def __str__(self) -> str:
        return table(self)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def _series(self, values: Tensor) -> pd.Series:
        return pd.Series(values[: self.layout.fixed].numpy(), self.names)

    def _parts(self) -> list[tuple[Factor, slice]]:
        """Return the factors, and the positions of their effects among all."""
        ends = np.cumsum([len(f.terms) for f in self.factors]).tolist()
        starts = [0, *ends[:-1]]
        return [(f, slice(a, b)) for f, a, b in zip(self.factors, starts, ends, strict=True)]

    def _draw(self, design: Design, generator: torch.Generator) -> Tensor:
        """Draw responses, (rows,)."""
        eta = design.offset + design.fixed @ self.layout.beta(self.theta)
        factor = self.layout.factor(self.theta)
        for e, (_, part) in zip(design.effects, self._parts(), strict=True):
            alone = e.index < 0
            index = torch.where(alone, len(e.groups) - 1 + alone.cumsum(0), e.index)
            shape = (len(e.groups) + int(alone.sum()), len(e.terms))
            u = torch.randn(shape, dtype=torch.float64, generator=generator)
            eta = eta + (e.columns * (u @ factor[part, part].T)[index]).sum(1)
        log_dispersion = self.layout.log_dispersion(self.theta)
        return self.family.sample(eta, design.trials, log_dispersion, generator)

    def _spread(self, design: Design) -> Tensor:
        """Return the standard deviation of zᵀb, (rows,)."""
        columns = torch.cat([e.columns for e in design.effects], 1)
        return (columns @ self.layout.factor(self.theta)).norm(dim=1)

    def _design(self, new: Data | None) -> Design:
        if new is not None:
            return self.coding.design(new)
        if self.live is None:
            raise ValueError("new: a loaded fit has no data of its own; pass the rows")
        return self.live.design


def load(path: str | Path, family: Family | None = None) -> Fit:
    """Read a fit written by `Fit.save`.

    Args:
        path: the file.
        family: the family, if it is an object of your own.
    """
    with files.opened(path) as content:
        own = family_of(content["family"], content["link"]) if family is None else family
        kinds = get_type_hints(Fit)
        return Fit(family=own, **{n: files.decoded(kinds[n], content[n]) for n in _stored()})


def _stored() -> list[str]:
    """Return the fields of a fit that its file has under their names."""
    return [f.name for f in fields(Fit) if f.name not in ("family", "path", "live")]


def theta_names(
    names: tuple[str, ...],
    factors: list[tuple[str, tuple[str, ...]]],
    layout: Layout,
    family: Family,
) -> tuple[str, ...]:
    """Return a name for each entry of θ, for figures and messages.

    Args:
        names: names of the fixed effects.
        factors: name and terms of each grouping factor.
        layout: the layout of θ.
        family: the family of the response.
    """
    row, column = layout.entries
    terms = [(name, term) for name, terms in factors for term in terms]
    of_effects = [f"{term} | {name}" if len(factors) > 1 else term for name, term in terms]
    entries = [
        f"sd({of_effects[i]})" if i == j else f"Λ({of_effects[i]}, {of_effects[j]})"
        for i, j in zip(row.tolist(), column.tolist(), strict=True)
    ]
    last = [f"log {family.dispersion}"] if layout.dispersion else []
    return (*names, *entries, *last)


def _law(statistic: float, degrees: int, boundary: int | None) -> tuple[str, float]:
    """Return the law of a likelihood-ratio statistic and its p-value.

    Args:
        statistic: the statistic.
        degrees: the number of parameters that the larger model adds.
        boundary: how many of them the smaller model fixes on a boundary; None if not nested.
    """
    if boundary is None:
        return "the models are not nested; compare their AIC", math.nan
    if boundary > 1:
        return f"{boundary} variances are fixed at 0; {_SIMULATE}", math.nan
    t = max(0.0, statistic)
    tails = [float(chdtrc(k, t)) if k else float(t == 0.0) for k in (degrees - 1, degrees)]
    if boundary == 1:
        return f"½χ²({degrees - 1}) + ½χ²({degrees})", 0.5 * (tails[0] + tails[1])
    return f"χ²({degrees})", tails[1]


def _on_boundary(small: Fit, large: Fit) -> int | None:
    """Count the variances that the smaller model fixes at 0; None if it is not a special case."""
    assert small.live is not None
    assert large.live is not None
    a, b = small.live.design, large.live.design
    same = torch.equal(a.trials, b.trials) and torch.allclose(a.offset, b.offset)
    poisson = isinstance(small.family, Poisson) and isinstance(large.family, NegativeBinomial)
    if not (same and (poisson or small.family == large.family) and _within(a.fixed, b.fixed)):
        return None
    inside = [list[Tensor]() for _ in _blocks(b)]
    for index, columns in _blocks(a):
        homes = [
            i
            for i, (other, wide) in enumerate(_blocks(b))
            if _same_groups(index, other) and _within(columns, wide)
        ]
        if not homes:
            return None
        inside[homes[0]].append(columns)
    added = [
        wide.shape[1] - sum(columns.shape[1] for columns in found)
        for (_, wide), found in zip(_blocks(b), inside, strict=True)
    ]
    return sum(added) + int(poisson)


def _blocks(design: Design) -> list[tuple[Tensor, Tensor]]:
    """Return the groups of the rows and the columns of each block of correlated effects."""
    return [
        (e.index, columns)
        for e in design.effects
        for columns in e.columns.split(list(e.blocks), dim=1)
    ]


def _same_groups(one: Tensor, other: Tensor) -> bool:
    pairs = torch.stack([one, other], 1).unique(dim=0)
    return len(pairs) == len(one.unique()) == len(other.unique())


def _within(columns: Tensor, others: Tensor) -> bool:
    """Return whether each column is a linear combination of others."""
    q, _ = torch.linalg.qr(others)
    rest = columns - q @ (q.T @ columns)
    return bool((rest.norm(dim=0) <= 1e-8 * columns.norm(dim=0)).all())


def _bootstrap(small: Fit, large: Fit, count: int, seed: int) -> Iterator[float]:
    """Yield statistics of data sets drawn from the smaller model; skip those without a fit."""
    assert small.live is not None
    assert large.live is not None
    generator = torch.Generator().manual_seed(seed)
    for i in range(count):
        y = small._draw(small.live.design, generator)
        try:
            lives = [fit.live.refit(y, seed + i).live for fit in (large, small) if fit.live]
        except FloatingPointError:
            continue
        values = [live.value for live in lives if live]
        yield 2.0 * values[0].minus(values[1])[0]


def _estimable(width: Tensor) -> Tensor:
    """Return half widths of intervals of logarithms, NaN for those that are too wide."""
    return torch.where(width <= _NORMAL * _WIDEST_LOG, width, torch.nan)


def _root(covariance: Tensor) -> Tensor:
    return covariance.diagonal().clamp(min=0.0).sqrt()
