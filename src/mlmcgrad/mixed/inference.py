"""Confidence intervals for all parameters, and tests of nested models.

A `Quantity` is a parameter as users know it, a function of θ: a fixed effect, a standard deviation,
a correlation, the dispersion.

- Wald's interval is computed on a scale without bounds (log, atanh) from the observed information.
- The profile interval of ψ holds the values for which the likelihood-ratio test does not reject:
  2 (max l − max_{ψ(θ) = value} l) ≤ χ²_1(1 − α). With S an estimate of the score, I the information
  and g = ∇ψ, the maximum under ψ = c is found by Newton's steps

      d = I^{-1}(S + λg),    λ = (c − ψ(θ) − gᵀI^{-1}S)/(gᵀI^{-1}g).

  At the maximum −λ is the slope of the profile, which determines the next value to try.

All log-likelihoods use the same random numbers, so their differences have little noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, TypeAlias, final

import pandas as pd
import torch
from scipy.special import chdtrc, ndtri
from torch import Tensor

from mlmcgrad.mixed.design import Design, build
from mlmcgrad.mixed.families import Family, NegativeBinomial, Poisson
from mlmcgrad.mixed.formula import alike, parse
from mlmcgrad.mixed.prediction import draw
from mlmcgrad.mixed.search import Information, LogLikelihood, MarginalLikelihood

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit, Live

Method: TypeAlias = Literal["wald", "profile"]
Row: TypeAlias = dict[str, float | str]

_WIDEST = 2.0  # standard error of a logarithm or an atanh above which there is no Wald interval
_SEED = 0  # of the log-likelihoods that are compared
_SCORES = 16  # in one step of a profile
_STEPS = 12  # to the maximum under a constraint,
_NEAR = 0.1  # until a step is this short, in standard errors: it changes 2 l by 0.01
_LONGEST = 2.0  # standard errors in one step
_VALUES = 14  # of a profile, to find an end of an interval
_CLOSE = 0.005  # of the root of the statistic to its quantile
_FARTHEST = 12.0  # log or atanh of an end that counts as infinite
_UNKNOWN = 0.1  # variance of a direction about which the information says nothing, in search units
_NO_TEST: Row = {"statistic": math.nan, "added": 0, "p_value": math.nan, "law": ""}
_SIMULATE = "no simple law is known; use simulate=200"


@final
@dataclass(frozen=True)
class Quantity:
    """A parameter on the user's scale.

    `free` is the function of θ, on a scale without bounds: log for standard deviations and
    dispersions, atanh for correlations.
    """

    kind: str  # "fixed", "sd", "cor" or "dispersion"
    term: str  # the name of a fixed effect or of the dispersion, "sd(x)" or "cor(x, z)"
    factor: str  # of a standard deviation or correlation
    free: Callable[[Tensor], Tensor]
    entries: Tensor | None = None  # positions in θ of the row of Λ of a standard deviation

    @property
    def name(self) -> str:
        """The term with its factor, "sd(x | g)"."""
        return f"{self.term.removesuffix(')')} | {self.factor})" if self.factor else self.term

    def natural(self, free: Tensor) -> Tensor:
        """Return the parameter, given its value on the scale without bounds."""
        if self.kind == "fixed":
            return free
        return torch.tanh(free) if self.kind == "cor" else torch.exp(free)

    def at(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the value on the scale without bounds, and its gradient in θ."""
        point = theta.detach().clone().requires_grad_()
        value = self.free(point)
        (gradient,) = torch.autograd.grad(value, point)
        return float(value.detach()), gradient


def quantities(fit: Fit) -> list[Quantity]:
    """Return the fixed effects, standard deviations, correlations and the dispersion."""
    layout = fit.layout

    def log_sd(i: int, theta: Tensor) -> Tensor:
        return 0.5 * layout.factor(theta)[i].square().sum().log()

    def atanh_correlation(i: int, j: int, theta: Tensor) -> Tensor:
        a, b = layout.factor(theta)[[i, j]]
        return torch.atanh((a @ b) / (a.norm() * b.norm()))

    found = [Quantity("fixed", name, "", itemgetter(i)) for i, name in enumerate(fit.names)]
    row, column = layout.entries
    pairs = list(zip(row.tolist(), column.tolist(), strict=True))  # row by row
    for f, part in fit.parts:
        name = dict(zip(range(part.start, part.stop), f.terms, strict=True))
        for i, term in name.items():
            own = layout.fixed + (row == i).nonzero()[:, 0]
            found.append(Quantity("sd", f"sd({term})", f.name, partial(log_sd, i), own))
        for i, j in (pair for pair in pairs if pair[0] in name and pair[0] != pair[1]):
            term = f"cor({name[j]}, {name[i]})"
            found.append(Quantity("cor", term, f.name, partial(atanh_correlation, i, j)))
    if layout.dispersion:
        found.append(Quantity("dispersion", str(fit.family.dispersion), "", itemgetter(-1)))
    return found


def chosen(fit: Fit, parameters: str | list[str]) -> list[Quantity]:
    """Return the quantities that `conf_int` is asked for."""
    every = quantities(fit)
    if parameters == "all":
        return every
    if parameters in ("fixed", "random"):
        return [q for q in every if (q.kind == "fixed") == (parameters == "fixed")]
    names = {q.name: q for q in every}
    wanted = [parameters] if isinstance(parameters, str) else list(parameters)
    for name in wanted:
        if name not in names:
            raise ValueError(
                f"parameters must be 'fixed', 'random', 'all' or names among "
                f"{', '.join(map(repr, names))}, got {name!r}{alike(str(name), names)}"
            )
    return [names[name] for name in wanted]


def estimates(fit: Fit, which: list[Quantity]) -> pd.DataFrame:
    """Return the columns `estimate`, `free` and `free_error`, the last two without bounds.

    The errors are NaN where a standard deviation is 0, or its logarithm is not estimable.
    """
    rows = []
    for q in which:
        value, gradient = q.at(fit.theta)
        error = math.nan
        if math.isfinite(value) and bool(gradient.isfinite().all()):
            used = gradient != 0.0  # a dispersion that is not determined has no covariance
            part = fit.parameter_covariance[used][:, used]
            variance = float(gradient[used] @ part @ gradient[used])
            error = math.sqrt(max(variance, 0.0))
        rows.append((float(q.natural(torch.tensor(value))), value, error))
    names = [q.name for q in which]
    return pd.DataFrame(rows, names, ["estimate", "free", "free_error"])


def intervals(fit: Fit, which: list[Quantity], alpha: float, method: Method) -> pd.DataFrame:
    """Return intervals with coverage 1 − alpha, columns 0 and 1, one row per quantity."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must lie strictly between 0 and 1, got {alpha!r}")
    if method not in ("wald", "profile"):
        raise ValueError(f"method must be 'wald' or 'profile', got {method!r}")
    quantile, found = float(ndtri(1.0 - alpha / 2.0)), estimates(fit, which)
    if method == "profile":
        profile = Profile(fit)
        rows = [profile.interval(q, quantile) for q in which]
    else:
        rows = []
        for q, (value, error) in zip(which, found[["free", "free_error"]].to_numpy(), strict=True):
            width = quantile * error if q.kind == "fixed" or error <= _WIDEST else math.nan
            ends = q.natural(torch.tensor([value - width, value + width], dtype=torch.float64))
            rows.append((float(ends[0]), float(ends[1])))
    return pd.DataFrame(rows, found.index, [0, 1])


@final
class Profile:
    """The log-likelihood of a fit, maximised under constraints."""

    def __init__(self, fit: Fit) -> None:
        if fit.live is None:
            raise ValueError("method: a loaded fit has no data for a profile; fit it again")
        if not bool(fit.parameter_covariance.isfinite().all()):
            raise ValueError(
                f"method must be 'wald', because the search did not converge: {fit.problem}"
            )
        self.fit, self._live = fit, fit.live
        self._likelihood: MarginalLikelihood = self._live.integrated(_SEED)
        self._start = self._live.scale.back(fit.theta)
        inverse = torch.linalg.inv(self._live.scale.matrix)
        self._variance = _floored(inverse @ fit.parameter_covariance @ inverse.T)
        self._top = self._value(self._start)

    def zero(self, entries: Tensor) -> tuple[float, float, Tensor]:
        """Return twice the loss of log-likelihood if entries of θ are 0, its error, and θ."""
        rows = torch.eye(len(self._start), dtype=torch.float64)[entries]
        theta = self._start.clone()
        theta[entries] = 0.0

        def fixed(at: Tensor) -> tuple[Tensor, Tensor]:
            return -at[entries], rows

        theta, _ = self._maximum(theta, fixed)
        loss, error = self._top.minus(self._value(theta))
        return 2.0 * loss, 2.0 * error, self._live.scale.point(theta)

    def interval(self, quantity: Quantity, quantile: float) -> tuple[float, float]:
        """Return the ends of the profile interval; NaN for an end that is not found."""
        free, gradient = quantity.at(self.fit.theta)
        if quantity.kind == "cor" and not math.isfinite(free):
            return math.nan, math.nan
        error = math.nan
        if bool(gradient.isfinite().all()):
            error = float(gradient @ self.fit.parameter_covariance @ gradient) ** 0.5
        if quantity.kind == "sd":  # on its natural scale, where 0 is near
            assert quantity.entries is not None
            sd = math.exp(free)
            size = float(self._live.scale.matrix.diagonal()[quantity.entries[-1]])
            unit = sd * min(error, _WIDEST) if error > 0.0 else 0.5 * size
            high = self._end(quantity, sd, unit, quantile)
            known = sd > 0.0 and self.zero(quantity.entries)[0] > quantile**2
            low = self._end(quantity, sd, -min(unit, 0.4 * sd), quantile) if known else 0.0
            return low, high
        ends = [self._end(quantity, free, sign * error, quantile) for sign in (-1.0, 1.0)]
        low, high = quantity.natural(torch.tensor(ends, dtype=torch.float64)).tolist()
        return low, high

    def _end(self, quantity: Quantity, center: float, unit: float, quantile: float) -> float:
        """Find where the root of the statistic is the quantile, from center + quantile · unit."""
        positive = quantity.kind == "sd"
        theta, inside, outside = self._start, center, math.inf * unit
        value = center + quantile * unit
        if positive and value <= 0.0:
            value = 0.5 * center
        for _ in range(_VALUES):
            theta, slope = self._maximum(theta, self._constraint(quantity, value))
            loss, _ = self._top.minus(self._value(theta))
            root = math.sqrt(max(2.0 * loss, 0.0))
            if root < quantile:
                inside = value
            else:
                outside = value
            # d root/d value = slope/root, if the slope has the sign of a loss away from the center.
            rate = math.copysign(abs(slope), unit) / root if root > 0.0 else math.inf
            step = (quantile - root) / rate if rate and math.isfinite(rate) else unit
            step = math.copysign(min(abs(step), max(abs(value - center), abs(unit))), step)
            if abs(root - quantile) < _CLOSE:
                return value + step
            value += step
            if not min(inside, outside) < value < max(inside, outside):
                value = (
                    0.5 * (inside + outside) if math.isfinite(outside) else 2.0 * inside - center
                )
            if not positive and quantity.kind != "fixed" and abs(value) > _FARTHEST:
                return math.copysign(math.inf, unit)
        return math.nan

    def _constraint(
        self, quantity: Quantity, value: float
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        scale = self._live.scale

        def remaining(at: Tensor) -> tuple[Tensor, Tensor]:
            theta = scale.point(at)
            if quantity.kind == "sd":
                here, gradient = _sd(theta, quantity)
            else:
                here, gradient = quantity.at(theta)
            return at.new_tensor([value - here]), (gradient @ scale.matrix)[None]

        return remaining

    def _maximum(
        self, theta: Tensor, constraint: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, float]:
        """Return θ of the largest likelihood under a constraint, and the slope of the profile.

        The constraint returns what is missing at a θ, (k,), and its gradients, (k, θ).
        """
        variance, multiplier = self._variance, 0.0
        for step in range(_STEPS):
            missing, rows = constraint(theta)
            # First to the constraint, along the shape that the likelihood has at its maximum.
            score = torch.zeros_like(theta)
            if step:
                score = self._likelihood.scores(theta, _SCORES).mean(0)
            if step == 1:
                found = Information.at(self._likelihood, theta, 0.1)
                variance = _floored(found.inverse)
            lever = rows @ variance
            solved = torch.linalg.solve(lever @ rows.T, missing - lever @ score)
            move = variance @ score + lever.T @ solved
            length = float((move @ torch.linalg.solve(variance, move)).clamp(min=0.0).sqrt())
            if step:
                move = move * min(1.0, _LONGEST / max(length, 1e-300))
            theta = theta + move
            multiplier = float(solved[0])
            if step and length < _NEAR:
                break
        return theta, multiplier

    def _value(self, theta: Tensor) -> LogLikelihood:
        return self._likelihood.log_likelihood(theta, torch.Generator().manual_seed(_SEED))


def _sd(theta: Tensor, quantity: Quantity) -> tuple[float, Tensor]:
    """Return a standard deviation and its gradient in θ; at 0, along the diagonal of Λ."""
    assert quantity.entries is not None
    row, gradient = theta[quantity.entries], torch.zeros_like(theta)
    sd = float(row.norm())
    if sd > 0.0:
        gradient[quantity.entries] = row / sd
    else:
        gradient[quantity.entries[-1]] = 1.0
    return sd, gradient


def _floored(variance: Tensor) -> Tensor:
    """Return a variance that is positive also where the information says nothing."""
    values, vectors = torch.linalg.eigh(0.5 * (variance + variance.mT))
    floor = 1e-8 * float(values.max().clamp(min=1e-300))
    return (vectors * torch.where(values > floor, values, _UNKNOWN)) @ vectors.T


@final
@dataclass(frozen=True)
class LikelihoodRatioTest:
    """Twice the difference of two log-likelihoods, larger model minus smaller one.

    If the smaller model is true and does not fix a variance at 0, the statistic has a χ²
    distribution with k degrees of freedom, where k is the number of added parameters. A variance of
    0 is on the boundary of the parameter space. If one variance is fixed there, alone or with its
    covariances, the distribution is the mixture ½χ²_{k−1} + ½χ²_k (Stram and Lee, 1994), also for
    negative binomial against Poisson responses. In other cases no simple distribution is known:
    `simulate=200` draws from it.

    Attributes:
        statistic: the statistic.
        error: its Monte Carlo standard error.
        degrees: the number of parameters that the larger model adds.
        p_value: NaN if no reference distribution is known, or if the models are not nested.
        law: the reference distribution for the p-value, or why there is none.
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


def compare(fit: Fit, other: Fit, simulate: int, seed: int) -> LikelihoodRatioTest:
    """Test a model against a nested or larger one; see `Fit.compare`."""
    small, large = sorted((fit, other), key=lambda each: each.df)
    degrees = large.df - small.df
    if degrees == 0:
        raise ValueError(
            f"other must have more or fewer parameters than this model, but both have {fit.df}"
            "; compare their AIC instead"
        )
    first, second = _live(small), _live(large)
    if not torch.equal(first.design.y, second.design.y):
        raise ValueError(
            f"other must be a fit of the same responses, got {fit.nobs} and {other.nobs} rows;"
            " leave out the rows with missing values from both"
        )
    difference, error = second.value.minus(first.value)
    boundary = _on_boundary(small.family, first.design, large.family, second.design)
    statistic, at_zero = 2.0 * difference, small.theta[small.layout.diagonal] == 0.0
    law, p_value = _law(statistic, degrees, boundary)
    if boundary is not None and boundary < 2 and bool(at_zero.any()):
        law, p_value = f"a standard deviation of the smaller model is 0; {_SIMULATE}", math.nan
    if simulate:
        if boundary is None:
            raise ValueError("simulate must be 0, because the models are not nested")

        def again(y: Tensor, seed: int) -> float:
            values = [
                _live(_live(each).refit(replace(_live(each).design, y=y), seed)).value
                for each in (large, small)
            ]
            return 2.0 * values[0].minus(values[1])[0]

        law, p_value = _bootstrap(small, statistic, again, simulate, seed)
    return LikelihoodRatioTest(statistic, 2.0 * error, degrees, p_value, law)


def anova(*fits: Fit, simulate: int = 0, seed: int = 0) -> pd.DataFrame:
    """Compare fits of the same responses, each with the next smaller one.

    Args:
        fits: two or more fits, in any order.
        simulate: number of simulated data sets for each p-value; see `Fit.compare`.
        seed: seed of the simulation.

    Returns:
        One row per model, from the smallest to the largest, with the formula as its label:
        parameters `df`, `aic`, `bic`, `llf`, and for the test against the row above `statistic`,
        `added` (parameters), `p_value` and its `law`. Models of equal size are not tested.
    """
    if len(fits) < 2:
        raise ValueError(f"fits: anova compares two or more fits, got {len(fits)}")
    ordered = sorted(fits, key=lambda fit: fit.df)
    rows = []
    for before, fit in zip([None, *ordered], ordered, strict=False):
        row = {"df": fit.df, "aic": fit.aic, "bic": fit.bic, "llf": fit.llf} | _NO_TEST
        if before is not None and before.df < fit.df:
            row |= _tested(compare(fit, before, simulate, seed))
        rows.append(row)
    return pd.DataFrame(rows, [" ".join(fit.formula.split()) for fit in ordered])


def drop1(fit: Fit, simulate: int, seed: int) -> pd.DataFrame:
    """Drop each term in turn; see `Fit.drop1`."""
    live, labels = _live(fit), ["<none>"]
    rows = [{"df": fit.df, "aic": fit.aic, "llf": fit.llf} | _NO_TEST]
    for name, smaller in parse(fit.formula).smaller():
        labels.append(name)
        if not smaller.random:
            rows.append(_without_groups(fit, simulate, seed))
            continue
        weights = None if live.design.weights is None else live.design.weights.tolist()
        other = live.refit(build(str(smaller), live.design.data, weights), fit.seed)
        test = _NO_TEST | {"law": f"no fit without the term: {other.problem}"}
        if other.problem is None:
            test = _tested(compare(fit, other, simulate, seed))
        row: Row = {"df": other.df, "aic": other.aic, "llf": other.llf}
        rows.append(row | test)
    return pd.DataFrame(rows, labels).rename(columns={"added": "dropped"})


def _tested(test: LikelihoodRatioTest) -> Row:
    row: Row = {"statistic": test.statistic, "added": test.degrees, "p_value": test.p_value}
    return row | {"law": test.law}


def _without_groups(fit: Fit, simulate: int, seed: int) -> Row:
    """Return a row of `drop1` for the only random effects: they are 0 in the smaller model."""
    entries = torch.arange(fit.layout.size)[fit.layout.of_factor]
    count = len(entries)
    statistic, error, theta = Profile(fit).zero(entries)
    law, p_value = _law(statistic, count, fit.layout.random)
    if simulate:

        def again(y: Tensor, seed: int) -> float:
            live = _live(fit)
            return Profile(live.refit(replace(live.design, y=y), seed)).zero(entries)[0]

        law, p_value = _bootstrap(replace(fit, theta=theta), statistic, again, simulate, seed)
    llf, df = fit.llf - 0.5 * statistic, fit.df - count
    test = _tested(LikelihoodRatioTest(statistic, error, count, p_value, law))
    return {"df": df, "aic": 2.0 * df - 2.0 * llf, "llf": llf} | test


def _live(fit: Fit) -> Live:
    if fit.live is None:
        raise ValueError("other: a loaded fit has no data to compare on; fit it again")
    return fit.live


def _law(statistic: float, degrees: int, boundary: int | None) -> tuple[str, float]:
    """Return the law of a likelihood-ratio statistic and its p-value.

    `boundary` counts the parameters that the smaller model fixes on one; None if not nested.
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


def _on_boundary(small: Family, a: Design, large: Family, b: Design) -> int | None:
    """Count the variances that the smaller model fixes at 0; None if it is not a special case."""
    weights = [torch.ones_like(d.y) if d.weights is None else d.weights for d in (a, b)]
    same = torch.equal(a.trials, b.trials) and torch.allclose(a.offset, b.offset)
    poisson = isinstance(small, Poisson) and isinstance(large, NegativeBinomial)
    if not (
        same and torch.equal(*weights) and (poisson or small == large) and _within(a.fixed, b.fixed)
    ):
        return None
    wider, added = _blocks(b), int(poisson) + sum(columns.shape[1] for _, columns in _blocks(b))
    for index, columns in _blocks(a):
        if not any(_same_groups(index, i) and _within(columns, wide) for i, wide in wider):
            return None
        added -= columns.shape[1]
    return added


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


def _bootstrap(
    small: Fit, statistic: float, again: Callable[[Tensor, int], float], count: int, seed: int
) -> tuple[str, float]:
    """Return the law and p-value from data sets drawn from the smaller model.

    `again` returns the statistic of other responses; a data set without a fit is skipped.
    """
    generator, drawn = torch.Generator().manual_seed(seed), list[float]()
    for i in range(count):
        y = draw(small, _live(small).design, generator)
        with suppress(FloatingPointError):
            drawn.append(again(y, seed + i))
    larger = sum(value >= statistic for value in drawn)
    return f"{len(drawn)} simulated data sets", (1 + larger) / (1 + len(drawn))
