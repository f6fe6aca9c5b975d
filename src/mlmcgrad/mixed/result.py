"""A fitted mixed-effects model: estimates, their errors, predictions, tests, and its file.

Names follow statsmodels if possible. `params`, `bse`, `tvalues`, `pvalues`, `conf_int()` and
`cov_params()` refer to the fixed effects.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import accumulate, pairwise, zip_longest
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    final,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import numpy as np
import pandas as pd
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from mlmcgrad._files import write_atomically
from mlmcgrad.mixed import inference, prediction
from mlmcgrad.mixed.columns import Data
from mlmcgrad.mixed.design import Coding, Design
from mlmcgrad.mixed.families import Family
from mlmcgrad.mixed.families import family as family_of
from mlmcgrad.mixed.figures import plot
from mlmcgrad.mixed.formula import printable
from mlmcgrad.mixed.parameters import Layout, Scale
from mlmcgrad.mixed.search import FitCertificate, LogLikelihood, MarginalLikelihood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERRUPTED = "interrupted"
_FORMAT = "mlmcgrad mixed model 3"
_LARGEST = 12  # characters of a number in the table


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
    refit: Callable[[Design, int], Fit]  # to another response or other columns, with a seed
    integrated: Callable[[int], MarginalLikelihood]  # in the units of the search, with a seed
    scale: Scale  # of these units
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
        llf_se: its Monte Carlo standard error; 0 if there is none.
        method: how the integrals over the random effects were computed.
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
    method: str
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

    def conf_int(
        self,
        alpha: float = 0.05,
        *,
        method: inference.Method = "wald",
        parameters: str | list[str] = "fixed",
    ) -> pd.DataFrame:
        """Return intervals with coverage 1 − alpha; columns 0 and 1.

        Args:
            alpha: the probability that an interval misses the parameter.
            method: "wald" uses the standard errors, on the log scale for standard deviations and
                dispersions and on Fisher's scale for correlations; NaN where they are not
                estimable. "profile" inverts the likelihood-ratio test, which is better with few
                groups, and near 0; one parameter takes about as long as a fit.
            parameters: "fixed" effects, "random" (standard deviations, correlations and the
                dispersion), "all", or names such as "sd(x | g)" or ["cor(Intercept, x | g)"].
        """
        which = inference.chosen(self, parameters)
        return inference.intervals(self, which, alpha, method)

    def cov_params(self) -> pd.DataFrame:
        """Return the covariance of the fixed effects, from the observed information."""
        part = self.parameter_covariance[: self.layout.fixed, : self.layout.fixed]
        return pd.DataFrame(part.numpy(), self.names, self.names)

    @property
    def parts(self) -> list[tuple[Factor, slice]]:
        """The grouping factors, and the positions of their effects among all."""
        ends = accumulate((len(f.terms) for f in self.factors), initial=0)
        return [(f, slice(*pair)) for f, pair in zip(self.factors, pairwise(ends), strict=True)]

    @property
    def covariance(self) -> dict[str, pd.DataFrame]:
        """For each factor, the covariance of its random effects."""
        factor = self.layout.factor(self.theta)
        whole = (factor @ factor.T).numpy()
        return {f.name: pd.DataFrame(whole[part, part], f.terms, f.terms) for f, part in self.parts}

    @property
    def sd(self) -> dict[str, pd.Series]:
        """For each factor, the standard deviations of its random effects."""
        sds = self.layout.sds(self.theta)
        return {f.name: pd.Series(sds[part].numpy(), f.terms) for f, part in self.parts}

    @property
    def sd_intervals(self) -> dict[str, pd.DataFrame]:
        """95 % intervals of the standard deviations, computed on the log scale: `low` and `high`.

        NaN where they are not estimable: the standard deviation is 0, or so near it that its
        logarithm has a standard error above 2.
        """
        which = [q for q in inference.quantities(self) if q.kind == "sd"]
        ends = inference.intervals(self, which, 0.05, "wald").to_numpy()
        return {
            f.name: pd.DataFrame(ends[part], f.terms, ["low", "high"]) for f, part in self.parts
        }

    @property
    def log_sd_errors(self) -> Tensor:
        """Standard errors of the log standard deviations of all factors, (q,)."""
        which = [q for q in inference.quantities(self) if q.kind == "sd"]
        return torch.tensor(inference.estimates(self, which)["free_error"].to_numpy())

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
        name = str(self.family.dispersion)
        ends = self.conf_int(parameters=[name]).to_numpy()[0]
        values = [float(self.theta[-1].exp()), *ends.tolist()]
        return pd.Series(values, ["estimate", "low", "high"], name=name)

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

    def tidy(self, alpha: float = 0.05, *, method: inference.Method = "wald") -> pd.DataFrame:
        """Return all parameters as one table, in the columns of R's broom.mixed.

        Args:
            alpha: the intervals `conf_low`, `conf_high` have coverage 1 − alpha.
            method: how the intervals are computed, as in `conf_int`.

        Returns:
            `effect` ("fixed" or "ran_pars"), `group`, `term`, `estimate`, `std_error`, `statistic`,
            `p_value` and the intervals. Standard deviations have no test.
        """
        which = inference.quantities(self)
        found = inference.estimates(self, which)
        ends = inference.intervals(self, which, alpha, method)
        value, kinds = found["estimate"].to_numpy(), np.array([q.kind for q in which])
        # The derivatives of the identity, tanh and exp.
        slopes = np.select([kinds == "fixed", kinds == "cor"], [1.0, 1.0 - value**2], value)
        untested = [math.nan] * (len(which) - len(self.names))
        return pd.DataFrame(
            {
                "effect": np.where(kinds == "fixed", "fixed", "ran_pars"),
                "group": [q.factor for q in which],
                "term": [q.term for q in which],
                "estimate": value,
                "std_error": slopes * found["free_error"].to_numpy(),
                "statistic": [*self.tvalues, *untested],
                "p_value": [*self.pvalues, *untested],
                "conf_low": ends[0].to_numpy(),
                "conf_high": ends[1].to_numpy(),
            }
        )

    def ranef(self, interval: float = 0.95) -> pd.DataFrame:
        """Return the random effects of each group given the data.

        Args:
            interval: the probability of the intervals `low`, `high`, which are normal.

        Returns:
            One row per factor, term and group: the posterior `mean` and standard deviation `sd`.
        """
        if not 0.0 < interval < 1.0:
            raise ValueError(f"interval must lie strictly between 0 and 1, got {interval!r}")
        rows = [
            (f.name, group, term, mean, sd)
            for f in self.factors
            for term, means, sds in zip(f.terms, f.mean.T.tolist(), f.sd.T.tolist(), strict=True)
            for group, mean, sd in zip(f.groups, means, sds, strict=True)
        ]
        found = pd.DataFrame(rows, columns=["factor", "group", "term", "mean", "sd"])
        width = float(ndtri(0.5 + 0.5 * interval)) * found["sd"]
        return found.assign(low=found["mean"] - width, high=found["mean"] + width)

    @overload
    def predict(
        self,
        new: Data | None = None,
        *,
        type: prediction.Scale = "response",
        effects: prediction.Effects = "conditional",
        interval: None = None,
    ) -> pd.Series: ...

    @overload
    def predict(
        self,
        new: Data | None = None,
        *,
        type: prediction.Scale = "response",
        effects: prediction.Effects = "conditional",
        interval: float,
    ) -> pd.DataFrame: ...

    def predict(
        self,
        new: Data | None = None,
        *,
        type: prediction.Scale = "response",  # noqa: A002
        effects: prediction.Effects = "conditional",
        interval: float | None = None,
    ) -> pd.Series | pd.DataFrame:
        """Predict the mean response of rows; for binomial rows, the probability of a success.

        Args:
            new: rows, which need no response; by default those of the fit.
            type: "response", or "link" for the linear predictor.
            effects: "conditional" is the mean given the group, whose random effects are at their
                posterior means. The random effects of an unknown group are 0, which gives the
                response of a typical group. "marginal" is the mean over all groups there could be,
                an integral over the random effects. "none" sets all random effects to 0.
            interval: the probability of an interval for the mean, for example 0.95. In unknown
                groups conditional intervals include the spread of the groups.

        Returns:
            The predictions; with an interval a table with `estimate`, `low` and `high`.
        """
        return prediction.predict(self, new, type, effects, interval)

    def residuals(
        self,
        type: prediction.Residuals = "quantile",  # noqa: A002
        *,
        draws: int = 250,
        seed: int = 0,
    ) -> pd.Series:
        """Return a residual for each row of the fit.

        Args:
            type: "quantile" ranks each response among responses simulated with new random effects,
                ties in random order; if the model is right, its law is standard normal in every
                family. "response" is the response (the share of successes) minus its conditional
                mean; "pearson" divides this by the conditional standard deviation.
            draws: number of simulated data sets, for quantile residuals.
            seed: seed of the simulation.
        """
        return prediction.residuals(self, type, draws, seed)

    def simulate(self, new: Data | None = None, *, seed: int = 0) -> pd.Series:
        """Draw responses of the fitted model, with new random effects for all groups.

        Args:
            new: rows, which need no response; by default those of the fit. A row without a group is
                a group of its own.
            seed: seed of the randomness.
        """
        return prediction.simulate(self, new, seed)

    def compare(
        self, other: Fit, *, simulate: int = 0, seed: int = 0
    ) -> inference.LikelihoodRatioTest:
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
        return inference.compare(self, other, simulate, seed)

    def drop1(self, *, simulate: int = 0, seed: int = 0) -> pd.DataFrame:
        """Drop each term in turn, fixed or random, and test the model against the one without it.

        A term is dropped only if it is part of no other: a not before a:b, and the intercept of a
        group not before its slopes.

        Args:
            simulate: number of simulated data sets for each p-value; see `compare`.
            seed: seed of the simulation.

        Returns:
            One row per term, after "<none>" for this model: parameters `df`, `aic` and `llf` of
            the smaller model, and of the test `statistic`, `dropped` (parameters), `p_value` and
            `law`.
        """
        return inference.drop1(self, simulate, seed)

    def plot(self, what: Literal["fit", "ranef", "residuals"] = "fit") -> Figure:
        """Plot the fit.

        Args:
            what: "fit": the paths of the estimates, and the random effects of the first factor.
                "ranef": the random effects of all factors with 95 % intervals, a caterpillar plot.
                "residuals": four panels that show whether the model describes the data.
        """
        return plot(self, what)

    def save(self, path: str | Path) -> None:
        """Write the fit, without the data, to a JSON file; `mixed.load` reads it.

        The file holds the SHA-256 of its content, so that a damaged one is refused as a whole.
        """
        content = {"family": self.family.name, "link": self._link}
        content |= {name: encoded(getattr(self, name)) for name in _stored()}
        record = {"format": _FORMAT, "sha256": _digest(content), **content}
        text = json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False)
        write_atomically(Path(path), text.encode())

    def summary(self) -> FitSummary:
        """Return the table of estimates, random effects, log-likelihood and certificate."""
        return FitSummary(table(self))

    def __str__(self) -> str:
        return table(self)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def _link(self) -> str | None:
        return getattr(getattr(self.family, "link", None), "name", None)

    def _series(self, values: Tensor) -> pd.Series:
        return pd.Series(values[: self.layout.fixed].numpy(), self.names)


def load(path: str | Path, family: Family | None = None) -> Fit:
    """Read a fit written by `Fit.save`.

    Args:
        path: the file.
        family: the family, if it is an object of your own.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        if content.pop("sha256", None) != _digest(content):
            raise ValueError("its content was changed")
        own = family_of(content["family"], content["link"]) if family is None else family
        kinds = get_type_hints(Fit)
        return Fit(family=own, **{n: decoded(kinds[n], content[n]) for n in _stored()})
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"path {str(path)!r} is not a fit written by this version of Fit.save, or is damaged: "
            f"{error}"
        ) from None


def _stored() -> list[str]:
    """Return the fields of a fit that its file has under their names."""
    return [f.name for f in fields(Fit) if f.name not in ("family", "path", "live")]


def theta_names(
    names: tuple[str, ...],
    factors: list[tuple[str, tuple[str, ...]]],
    layout: Layout,
    family: Family,
) -> tuple[str, ...]:
    """Return a name for each entry of θ, given the names of the fixed effects and the factors."""
    row, column = layout.entries
    terms = [(name, term) for name, terms in factors for term in terms]
    of_effects = [f"{term} | {name}" if len(factors) > 1 else term for name, term in terms]
    entries = [
        f"sd({of_effects[i]})" if i == j else f"Λ({of_effects[i]}, {of_effects[j]})"
        for i, j in zip(row.tolist(), column.tolist(), strict=True)
    ]
    last = [f"log {family.dispersion}"] if layout.dispersion else []
    return (*names, *entries, *last)


def _root(covariance: Tensor) -> Tensor:
    return covariance.diagonal().clamp(min=0.0).sqrt()


def table(fit: Fit) -> str:
    """Format estimates with their errors, random effects, log-likelihood, certificate, notes."""
    what = f"{fit.family.name} ({fit._link})" if fit._link else fit.family.name
    groups = ", ".join(f"{len(f.groups)} groups of {f.name}" for f in fit.factors)
    head = printable(" ".join(fit.formula.split()))
    head += f"\n{printable(what)}: {fit.nobs} rows, {printable(groups)}"
    return "\n\n".join([head, _fixed(fit), _random(fit), _summary(fit)])


def _fixed(fit: Fit) -> str:
    rows: list[tuple[str, ...]] = [
        ("Fixed effects", "estimate", "std. error", "MC error", "z", "p", "95 % interval", "")
    ]
    columns = (fit.params, fit.bse, fit.monte_carlo_errors, fit.tvalues, fit.pvalues)
    ends = fit.conf_int().to_numpy().tolist()
    for name, (low, high), value, error, noise, z, p in zip(
        fit.names, ends, *(column.tolist() for column in columns), strict=True
    ):
        shown = "<0.001" if p < 0.001 else f"{p:.3f}"
        cells = (number(value), number(error), number(noise, 2), f"{z:.2f}", shown)
        rows.append((name, *cells, number(low), number(high)))
    return _aligned(rows)


def _random(fit: Fit) -> str:
    correlations = "correlations" if any(len(f.terms) > 1 for f in fit.factors) else ""
    rows: list[tuple[str, ...]] = [("Random effects", "sd", "95 % interval", "", correlations)]
    for f in fit.factors:
        rows.append((f.name,))
        sds, ends = fit.sd[f.name].tolist(), fit.sd_intervals[f.name].to_numpy().tolist()
        correlation = fit.correlation[f.name].to_numpy().tolist()
        for i, (term, sd, (low, high)) in enumerate(zip(f.terms, sds, ends, strict=True)):
            cells = (number(sd), number(low), number(high))
            rows.append((f"  {term}", *cells, *(f"{value:.2f}" for value in correlation[i][:i])))
    if fit.dispersion is not None:
        rows.append((str(fit.dispersion.name), *map(number, fit.dispersion.tolist())))
    return _aligned(rows)


def _summary(fit: Fit) -> str:
    error = f" ± {number(fit.llf_se, 2)}" if fit.llf_se > 0.0 else ""
    share = 100.0 * float(fit.standard_error_noise.max())
    noise = f", with Monte Carlo errors of at most {share:.2g} %" if share > 0.0 else ""
    lines = [
        f"Log-likelihood {fit.llf:.3f}{error}, AIC {fit.aic:.2f}, BIC {fit.bic:.2f}; "
        f"{fit.iterations} iterations",
        f"Integrals {fit.method}.",
        f"Standard errors from the observed information{noise}.",
    ]
    certificate = fit.certificate
    if certificate is not None:
        verdict = "holds" if certificate.holds else "DOES NOT HOLD"
        lines.append(
            f"Certificate {verdict}: {certificate.scores} independent score estimates place the "
            f"maximum\nwithin {certificate.bound:.2g} standard errors of the estimates "
            "(95 % bound)."
        )
    if fit.problem:
        lines.append(f"PROBLEM: {printable(fit.problem)}")
    return "\n".join([*lines, *(f"Note: {printable(note)}" for note in fit.notes)])


def number(value: float, digits: int = 4) -> str:
    """Format a number with a few significant digits."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    if value == 0.0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    plain = f"{value:.{min(places, 10)}f}"
    return plain if len(plain) <= _LARGEST and places <= 8 else f"{value:.{digits - 1}e}"


def _aligned(rows: list[tuple[str, ...]]) -> str:
    """Align the first column to the left and the others to the right; rows may end early."""
    columns = list(zip_longest(*(map(printable, row) for row in rows), fillvalue=""))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for first, *rest in zip(*columns, strict=True):
        cells = (f"  {cell.rjust(width)}" for cell, width in zip(rest, widths[1:], strict=True))
        lines.append((first.ljust(widths[0]) + "".join(cells)).rstrip())
    return "\n".join(lines)


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def encoded(value: Any) -> Any:
    """Return a value for strict JSON, with null instead of NaN."""
    if isinstance(value, Tensor):
        return encoded(value.tolist())
    if is_dataclass(value):
        return {f.name: encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: encoded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decoded(kind: Any, value: Any) -> Any:
    """Return the value of a type whose JSON is `value`; the inverse of `encoded`."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is float:
        return math.nan if value is None else float(value)
    if kind is Tensor:
        return torch.tensor(np.array(value, dtype=np.float64))
    if hasattr(kind, "__dataclass_fields__"):
        kinds = get_type_hints(kind)
        return kind(**{name: decoded(kinds[name], each) for name, each in value.items()})
    if origin is tuple:
        return tuple(decoded(parts[0], each) for each in value)
    if origin is Mapping:
        return {key: decoded(parts[1], each) for key, each in value.items()}
    if isinstance(value, dict):  # of an optional dataclass
        return decoded(parts[0], value)
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of the type {kind}")
    return value
