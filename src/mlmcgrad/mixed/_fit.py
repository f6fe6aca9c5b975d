"""Fit a mixed-effects model: maximise its exact likelihood."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from mlmcgrad._checks import positive, whole
from mlmcgrad.estimators import Estimator
from mlmcgrad.mixed.columns import Data
from mlmcgrad.mixed.crossed import Crossed
from mlmcgrad.mixed.design import Design, build
from mlmcgrad.mixed.families import Bernoulli, Binomial, Family, Gaussian, Weighted
from mlmcgrad.mixed.families import family as family_of
from mlmcgrad.mixed.grouped import Grouped
from mlmcgrad.mixed.parameters import Layout, scaled, start
from mlmcgrad.mixed.result import (
    INTERRUPTED,
    ConvergenceWarning,
    Factor,
    Fit,
    FitStep,
    Live,
    theta_names,
)
from mlmcgrad.mixed.search import (
    Information,
    LogLikelihood,
    MarginalLikelihood,
    SearchState,
    certify,
    search,
)

Progress: TypeAlias = bool | Callable[[FitStep], None] | None

_MANY_ROWS = 50_000
_NOISE, _NOTHING = 5.0, 1e-4
_FARTHEST = 20.0  # change of a linear predictor that is worth asking whether there is a maximum
_SCALES = (1.0, 4.0, 16.0, 64.0)  # of θ, at which the likelihood of diverging estimates grows
_COMMON = 0  # seed of every log-likelihood, so that differences have little noise
_SEPARATION = 1e-5  # gain of a row beyond the tolerance of a linear program
_NOTICED = 0.1  # share of a direction in θ that changes more than correlations
_EXTREME = 40.0  # linear predictor at which a response is certain
_UNKNOWN = 3.0  # standard error of the logarithm of a dispersion that the data do not determine
_PRECISE, _TOLERATED = 0.01, 0.02  # Monte Carlo error of a standard error: goal, and for a note
_PATIENCE = 2.0  # seconds before progress is shown
_SEPARATED = (
    "the estimates grow without bound, so there is no maximum: some columns separate the responses "
    "(all responses of a level, or of a group, are equal); leave out a column or join levels"
)
_FLAT = (
    "the likelihood is flat in {}: the data do not determine it, and its estimate and standard "
    "error are meaningless; leave it out, or use a simpler family"
)
_NOT_CERTIFIED = (
    "the certificate does not hold: independent score estimates place the maximum elsewhere; lower "
    "the tolerance"
)


def fit(
    formula: str,
    data: Data,
    family: str | Family,
    *,
    link: str | None = None,
    weights: str | Sequence[float] | None = None,
    seed: int = 0,
    tolerance: float = 0.02,
    iterations: int = 2000,
    candidates: int = 32,
    estimator: Estimator | None = None,
    progress: Progress = None,
) -> Fit:
    """Maximise the exact likelihood of a mixed-effects model.

    Args:
        formula: for example "use ~ age + urban + (1 + urban | district)".
        data: a pandas frame, a dict of columns, or the path of a CSV or Parquet file. Rows with a
            missing value in one of the formula's columns are left out.
        family: bernoulli, binomial, poisson, negative_binomial, gaussian, gamma, or an object with
            the members of `mixed.Family`.
        link: logit (the default), probit or cloglog for bernoulli and binomial.
        weights: prior weights of the rows, or the name of their column, as in lme4. A gaussian row
            has the variance sigma²/weight; for other families its log-likelihood is multiplied by
            its weight, as if it occurred that often.
        seed: seed of all randomness; the same seed gives the same fit.
        tolerance: the largest Monte Carlo error of an estimate, in its standard errors.
        iterations: maximum number of iterations.
        candidates: draws in a block of importance sampling; unused with several grouping factors.
        estimator: the law of the number of blocks per group; by default without truncation, so
            without bias. Only for one grouping factor: with several, the random effects are
            integrated together.
        progress: True shows a line on the terminal, False shows nothing; by default the line
            appears on a terminal after two seconds. A function is called with every iteration.

    Returns:
        The fit. If the search stops early, `fit.problem` says why, a `ConvergenceWarning` is
        issued, and the estimates are those of the last iteration.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> g = np.repeat(np.arange(40), 5)
        >>> y = rng.poisson(np.exp(0.5 + rng.standard_normal(40)[g]))
        >>> result = fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, "poisson")
        >>> result.converged, result.certificate.holds
        (True, True)
    """
    positive(tolerance, "tolerance")
    whole(iterations, "iterations")
    whole(candidates, "candidates", 2)
    model = family_of(family, link)
    with np.errstate(under="ignore"):  # harmless, whatever np.seterr says
        design = build(formula, data, weights)
        if estimator is not None and len(design.effects) > 1:
            raise ValueError(
                f"estimator is for one grouping factor, got {[e.factor for e in design.effects]}; "
                "leave it out"
            )
        model.check(design.y, design.trials)
        if weights is not None and isinstance(model, Binomial):
            raise ValueError(
                "weights must be None for binomial responses, whose weights are their trials; "
                "multiply successes and trials instead"
            )
        for effects in design.effects:
            alone = len(effects.groups) == len(design.y)
            if alone and isinstance(model, (Bernoulli, Gaussian)):
                raise ValueError(
                    f"the grouping factor {effects.factor!r} has one row in every group, and "
                    f"{model.name} data cannot distinguish its random effects from chance; leave "
                    "out its term"
                )
        options = _Options(tolerance, iterations, candidates, estimator)
        result = _maximise(design, model, seed, options, progress)
    if result.problem is not None:
        warnings.warn(result.problem, ConvergenceWarning, stacklevel=2)
    return result


class _Options(NamedTuple):
    tolerance: float
    iterations: int
    candidates: int
    estimator: Estimator | None


def _maximise(
    design: Design, family: Family, seed: int, options: _Options, progress: Progress = False
) -> Fit:
    """Fit a model to a design; see `fit`."""
    begun = time.monotonic()
    with _threads(len(design.y)), _overflow_errors():
        units, scale = scaled(design, family)
        law = family
        if design.weights is not None and not isinstance(family, Gaussian):
            units, law = replace(units, trials=design.weights), Weighted(family)

        def integrated(seed: int) -> MarginalLikelihood:
            generator = torch.Generator().manual_seed(seed)
            if len(design.effects) > 1:
                return Crossed(units, law, generator)
            return Grouped(units, law, options.estimator, options.candidates, generator)

        def sampled(theta: Tensor) -> LogLikelihood:
            """Estimate a log-likelihood far from the data, where quadrature may be misled."""
            other, generator = integrated(_COMMON), torch.Generator().manual_seed(_COMMON)
            other.exact = False
            return other.log_likelihood(theta, generator)

        likelihood = integrated(seed)
        layout, report = likelihood.layout, _reporter(progress, begun)
        theta = start(units, law, layout)
        state, path, problem = SearchState(0, theta), list[FitStep](), None
        flat, certificate, stopped = None, None, None
        names = theta_names(
            design.names, [(e.factor, e.terms) for e in design.effects], layout, family
        )
        farthest = _FARTHEST + 2.0 * likelihood.length(theta)
        try:
            for state in search(likelihood, theta, options.tolerance, options.iterations):
                at, noise = scale.point(state.theta), state.largest_noise
                path.append(FitStep(state.iteration, state.averaged > 0, at, noise, design.names))
                report(path[-1])
                if likelihood.length(state.theta) > farthest:
                    if _diverges(units, law, likelihood.layout, state.theta, sampled):
                        problem = _SEPARATED
                        break
                    farthest *= 2.0
            else:
                problem = _too_short(state, options)
            if problem is None:
                information = Information.at(likelihood, state.theta, _PRECISE)
                state = replace(state, information=information)
                flat = _undetermined(layout, state.theta, information)
                if flat is not None:
                    problem = _SEPARATED if _separated(units, law) else _FLAT.format(names[flat])
            if problem is None:
                certificate, state = certify(likelihood, state, options.tolerance)
                problem = None if certificate.holds else _NOT_CERTIFIED
        except KeyboardInterrupt as interrupt:
            stopped, problem = interrupt, f"{INTERRUPTED} after {state.iteration} iterations"
        report(None)

        theta, notes = _on_the_boundary(layout, state)
        information = state.information or Information.at(likelihood, theta, math.inf)
        unsure = information.noise(scale.matrix)
        if float(unsure.max()) > _TOLERATED:
            name, share = names[int(unsure.argmax())], 100.0 * float(unsure.max())
            notes += (f"the standard error of {name} has a Monte Carlo error of {share:.0f} %",)
        if design.dropped:
            notes = (f"{design.dropped} rows with missing values were left out", *notes)
        value = likelihood.log_likelihood(theta, torch.Generator().manual_seed(_COMMON))
        value = replace(value, shift=scale.log_volume)
        factors = tuple(
            Factor(e.factor, e.groups, e.terms, mean / size, spread.diagonal(0, 1, 2).sqrt() / size)
            for e, (mean, spread), size in zip(
                design.effects, likelihood.effects(theta), scale.columns, strict=True
            )
        )
        estimate, covariance = scale.point(theta), scale.covariance(information.inverse)
        if flat is not None:
            covariance[flat] = covariance[:, flat] = math.nan

        def refit(design: Design, seed: int) -> Fit:
            return _maximise(design, family, seed, options)

        return Fit(
            coding=design.coding,
            family=family,
            factors=factors,
            names=design.names,
            layout=layout,
            theta=estimate,
            parameter_covariance=covariance,
            standard_error_noise=unsure,
            monte_carlo_covariance=scale.covariance(state.monte_carlo_covariance),
            certificate=certificate,
            llf=value.total,
            llf_se=value.error,
            method=likelihood.method,
            problem=problem,
            notes=notes,
            nobs=len(design.y),
            iterations=state.iteration,
            seconds=time.monotonic() - begun,
            seed=seed,
            path=tuple(path),
            live=Live(design, value, refit, integrated, scale, stopped),
        )


@contextmanager
def _threads(rows: int) -> Iterator[None]:
    """Use one thread for small data, where several only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if rows < _MANY_ROWS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _overflow_errors() -> Iterator[None]:
    """Explain a matrix that cannot be factorised: numbers overflow."""
    try:
        yield
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise FloatingPointError(
            "data: the linear predictor overflows, so that no mode can be found; look for extreme "
            "values in the response, the columns and offset(), or rescale them"
        ) from None


def _reporter(progress: Progress, begun: float) -> Callable[[FitStep | None], None]:
    """Return a function to call with every iteration, and with None at the end."""
    on_terminal = progress is True or (progress is None and sys.stderr.isatty())

    def show(step: FitStep | None) -> None:
        if callable(progress) and step is not None:
            progress(step)
        elif on_terminal and (progress or time.monotonic() - begun >= _PATIENCE):
            sys.stderr.write("\r\x1b[K" + ("" if step is None else step.text))
            sys.stderr.flush()

    return show


def _too_short(state: SearchState, options: _Options) -> str | None:
    """Explain why a search that has ended is not good enough; return None if it is."""
    if state.largest_noise <= options.tolerance:
        return None
    after = f"after {options.iterations} iterations"
    if math.isinf(state.largest_noise):
        return (
            f"{after} the score is still larger than its noise; raise iterations, or simplify the "
            "random effects"
        )
    return (
        f"{after} the Monte Carlo error is {state.largest_noise:.3f} standard errors, above the "
        f"tolerance {options.tolerance}; raise iterations"
    )


def _diverges(
    design: Design,
    family: Family,
    layout: Layout,
    theta: Tensor,
    value_at: Callable[[Tensor], LogLikelihood],
) -> bool:
    """Decide whether there is no maximum, after the search has gone far away.

    Either a combination of the fixed columns separates the responses, or the likelihood of binary
    responses does not fall if all coefficients and standard deviations are multiplied by 64.
    """
    if _separated(design, family):
        return True
    if bool((_direction(design, family) == 0.0).any()):
        return False  # the likelihood of such a response falls to 0
    last = len(theta) - int(layout.dispersion)
    before = None
    for factor in _SCALES:
        at = torch.cat([factor * theta[:last], theta[last:]])
        value = value_at(at)
        if before is not None:
            difference, error = value.minus(before)
            if not difference > -2.0 * error:
                return False
        before = value
    return True


def _separated(design: Design, family: Family) -> bool:
    """Decide by a linear program whether a combination of fixed columns separates the responses.

    That is a direction in which no row becomes less likely, and some become more likely without
    end.
    """
    sign = _direction(design, family).numpy()
    rows = np.unique(np.column_stack([sign, design.fixed.numpy()]), axis=0)
    sign, x = rows[:, 0], rows[:, 1:]
    free, gains = x[sign == 0.0], (sign[:, None] * x)[sign != 0.0]
    if not len(gains):
        return False
    found = linprog(
        -gains.sum(0),
        A_ub=-gains,
        b_ub=np.zeros(len(gains)),
        A_eq=free if len(free) else None,
        b_eq=np.zeros(len(free)) if len(free) else None,
        bounds=(-1.0, 1.0),
    )
    return bool(found.success and (gains @ found.x).max() > _SEPARATION)


def _direction(design: Design, family: Family) -> Tensor:
    """Return 1 or −1 for a row whose likelihood never falls with η or −η, otherwise 0, (rows,)."""
    y, nothing = design.y, design.y.new_zeros(())
    below, above = (
        family.slopes(torch.full_like(y, eta), y, design.trials, nothing)[1]
        for eta in (-_EXTREME, _EXTREME)
    )
    up, down = (below >= 0.0) & (above >= 0.0), (below <= 0.0) & (above <= 0.0)
    return up.double() - down.double()


def _undetermined(layout: Layout, theta: Tensor, information: Information) -> int | None:
    """Return the position of a parameter that the data do not determine, if there is one.

    Where a standard deviation is near 0, some combination of entries of Λ changes nothing but
    correlations. That is no reason to distrust the fit.
    """
    if layout.dispersion and float(information.standard_errors[-1]) > _UNKNOWN:
        return layout.size - 1
    factor, sds = layout.factor(theta), layout.sds(theta).clamp(min=_NOTHING)
    for direction in information.flat.T:
        change = direction.abs()
        change[layout.of_factor] = 0.0
        change[layout.diagonal] = (factor * layout.factor(direction)).sum(1).abs() / sds
        if float(change.max()) > _NOTICED:
            return int(change.argmax())
    return None


def _on_the_boundary(layout: Layout, state: SearchState) -> tuple[Tensor, tuple[str, ...]]:
    """Return θ with diagonals of Λ that are positive, or 0 if they are noise; and notes."""
    theta = layout.with_positive_diagonal(state.theta)
    if state.covariance is None:
        return theta, ()
    small = theta[layout.diagonal] < _NOISE * state.monte_carlo_errors[layout.diagonal] + _NOTHING
    theta[layout.diagonal[small]] = 0.0
    zero = layout.sds(theta) <= _NOTHING
    theta[layout.of_factor][zero[layout.entries[0]]] = (
        0.0  # the other entries of a row of pure noise
    )
    if bool(zero.any()):
        return theta, (
            "a standard deviation of random effects is 0: groups differ no more than by chance; "
            "the model without it fits as well",
        )
    if bool(small.any()):
        return theta, (
            "the covariance of the random effects is singular: one of them is a combination of "
            "others; the data do not support as many random effects",
        )
    return theta, ()
