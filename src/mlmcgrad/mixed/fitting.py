"""Fitting a mixed-effects model: the maximum of the exact likelihood."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from mlmcgrad.estimators import Estimator
from mlmcgrad.mixed.columns import Data
from mlmcgrad.mixed.crossed import Crossed
from mlmcgrad.mixed.design import Design, build
from mlmcgrad.mixed.families import Bernoulli, Family, Gaussian
from mlmcgrad.mixed.families import family as family_of
from mlmcgrad.mixed.grouped import Grouped
from mlmcgrad.mixed.likelihood import Likelihood
from mlmcgrad.mixed.names import theta_names
from mlmcgrad.mixed.parameters import Layout
from mlmcgrad.mixed.progress import reporter
from mlmcgrad.mixed.result import INTERRUPTED, Factor, Fit, Live, Step
from mlmcgrad.mixed.scale import Scale, scaled, start
from mlmcgrad.mixed.search import Certificate, State, certify, search
from mlmcgrad.ranges import positive, whole

_MANY_ROWS = 50_000
_NOISE, _NOTHING = 5.0, 1e-4
_FARTHEST = 20.0  # a linear predictor so far beyond where it began fits any response of its row
_SEPARATED = (
    "the estimates grow without bound, so there is no maximum: some columns separate the responses "
    "(a level, or a group, with equal responses only); leave out a column or join levels"
)


def fit(
    formula: str,
    data: Data,
    family: str | Family,
    *,
    link: str | None = None,
    seed: int = 0,
    tolerance: float = 0.02,
    iterations: int = 2000,
    candidates: int = 32,
    estimator: Estimator | None = None,
    progress: bool | Callable[[Step], None] | None = None,
) -> Fit:
    """Maximise the exact likelihood of a mixed-effects model.

    Args:
        formula: for example "use ~ age + urban + (1 + urban | district)".
        data: a pandas frame, a dict of columns, or the path of a CSV file. Rows with a missing
            value in one of the formula's columns are left out.
        family: bernoulli, binomial, poisson, negative_binomial, gaussian, gamma, or an object.
        link: logit, probit or cloglog for the first two.
        seed: of all randomness; the same seed gives the same fit.
        tolerance: the largest Monte Carlo error of an estimate, in its standard errors.
        iterations: at most so many.
        candidates: draws of a block, see `grouped.py`; of no meaning with several grouping factors.
        estimator: how many blocks of draws a group has; by default without an end, so without bias.
            With several grouping factors there are chains instead, see `crossed.py`.
        progress: True shows a line on the terminal, False nothing; by default it is shown on a
            terminal after two seconds. A function is called with every iteration.

    Returns:
        The fit. If it could not get there, `fit.problem` says why, and the fit is what it has.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> g = np.repeat(np.arange(40), 5)
        >>> y = rng.poisson(np.exp(0.5 + rng.standard_normal(40)[g]))
        >>> found = fit("y ~ 1 + (1 | g)", {"y": y, "g": g}, "poisson")
        >>> found.certificate.holds
        True
    """
    positive(tolerance, "tolerance")
    whole(iterations, "iterations")
    whole(candidates, "candidates", 2)
    model = family_of(family, link)
    design = build(formula, data)
    if estimator is not None and len(design.effects) > 1:
        raise ValueError(
            f"estimator is for one grouping factor, got {[e.factor for e in design.effects]}; "
            "leave it out"
        )
    model.check(design.y, design.trials)
    _check_groups(design, model)
    with _threads(len(design.y)), _in_words():
        return _fit(design, model, seed, tolerance, iterations, candidates, estimator, progress)


def _fit(
    design: Design,
    model: Family,
    seed: int,
    tolerance: float,
    iterations: int,
    candidates: int,
    estimator: Estimator | None,
    progress: bool | Callable[[Step], None] | None,
) -> Fit:
    begun = time.monotonic()
    units, scale = scaled(design, model)
    likelihood = _likelihood(units, model, estimator, candidates, seed)
    theta = start(units, model, likelihood.layout)
    report = reporter(progress, begun)
    state, path, problem = State(0, False, theta), list[Step](), None
    certificate, stopped = None, None
    farthest = _FARTHEST + 2.0 * likelihood.length(theta)
    try:
        for state in search(likelihood, theta, tolerance=tolerance, iterations=iterations):
            path.append(_step(state, scale, design.names))
            report(path[-1])
            if state.averaged % 4 == 0 and likelihood.length(state.theta) > farthest:
                problem = _SEPARATED
                break
        else:
            problem = _too_short(state, tolerance, iterations)
        if problem is None and state.definite:
            certificate = certify(likelihood, state)
    except KeyboardInterrupt as interrupt:
        stopped, problem = interrupt, f"{INTERRUPTED} after {len(path)} iterations"
    report(None)
    found = _finish(design, model, likelihood, scale, state, certificate, problem)
    live = Live(design, likelihood, scale, scale.back(found.theta), stopped)
    seconds = time.monotonic() - begun
    return replace(found, seed=seed, seconds=seconds, path=tuple(path), live=live)


def _check_groups(design: Design, family: Family) -> None:
    """Refuse random effects of single rows, for families that have no scale of their own."""
    for effects in design.effects:
        alone = len(effects.groups) == len(design.y)
        if alone and isinstance(family, (Bernoulli, Gaussian)):
            raise ValueError(
                f"the grouping factor {effects.factor!r} has one row in every group, and nothing "
                f"in {family.name} data tells its random effects from chance; leave out its term"
            )


@contextmanager
def _threads(rows: int) -> Iterator[None]:
    """One thread for small data, where several only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if rows < _MANY_ROWS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _in_words() -> Iterator[None]:
    """A matrix that cannot be factorised comes from numbers that overflow."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "_LinAlgError":  # which torch does not export
            raise
        raise FloatingPointError(
            "data: the linear predictor overflows, so that no mode can be found; look for extreme "
            "values in the response, the columns and offset(), or rescale them"
        ) from None


def _likelihood(
    design: Design, family: Family, estimator: Estimator | None, candidates: int, seed: int
) -> Likelihood:
    generator = torch.Generator().manual_seed(seed)
    if len(design.effects) > 1:
        return Crossed(design, family, generator=generator)
    return Grouped(design, family, estimator=estimator, candidates=candidates, generator=generator)


def _too_short(state: State, tolerance: float, iterations: int) -> str | None:
    """Why a search that used up its iterations, or ended, is not good enough."""
    if not state.averaging:
        return (
            f"after {iterations} iterations the score is still larger than its noise; raise "
            "iterations, or simplify the random effects"
        )
    if state.largest_noise > tolerance:
        return (
            f"after {iterations} iterations the Monte Carlo error is {state.largest_noise:.3f} "
            f"standard errors, above the tolerance {tolerance}; raise iterations"
        )
    return None


def _finish(
    design: Design,
    family: Family,
    likelihood: Likelihood,
    scale: Scale,
    state: State,
    certificate: Certificate | None,
    problem: str | None,
) -> Fit:
    """The fit from where the search has ended."""
    layout = likelihood.layout
    theta, notes = _on_the_boundary(layout, state)
    if design.dropped:
        notes = (f"{design.dropped} rows with missing values were left out", *notes)
    information = state.information
    if information is None:
        information = likelihood.information(theta)
    unknown = torch.full_like(information, torch.nan)
    noise = unknown if state.noise is None else state.noise / state.averaged
    if certificate is not None and not certificate.holds:
        problem = (
            "the certificate does not hold: scores that had no part in the estimate put the "
            "maximum elsewhere; lower the tolerance"
        )
    value = likelihood.log_likelihood(theta)
    factors = tuple(
        Factor(e.factor, e.groups, e.terms, mean / size, covariance.diagonal(0, 1, 2).sqrt() / size)
        for e, (mean, covariance), size in zip(
            design.effects, likelihood.effects(theta), scale.columns, strict=True
        )
    )
    covariance = scale.covariance(torch.linalg.pinv(information, hermitian=True))
    found = Fit(
        coding=design.coding,
        family=family,
        factors=factors,
        names=design.names,
        layout=layout,
        theta=scale.point(theta),
        parameter_covariance=covariance,
        monte_carlo_covariance=scale.covariance(noise),
        certificate=certificate,
        log_likelihood=(value.total + scale.log_volume, value.error),
        problem=problem,
        notes=notes,
        rows=len(design.y),
        iterations=state.iteration,
    )
    if problem is None and not state.definite:
        return replace(found, problem=_flat(theta_names(found), information))
    return found


def _flat(names: tuple[str, ...], information: Tensor) -> str:
    """What to say of an information that is not positive definite."""
    name = names[int(torch.linalg.eigh(information)[1][:, 0].abs().argmax())]
    return (
        f"the likelihood is flat in {name}: the data do not say what it is, and its estimate and "
        "errors mean little; leave it out, or use a simpler family"
    )


def _on_the_boundary(layout: Layout, state: State) -> tuple[Tensor, tuple[str, ...]]:
    """θ with positive diagonals of Λ, 0 where they are no more than noise; and what was found."""
    theta = layout.with_positive_diagonal(state.theta)
    if state.noise is None:
        return theta, ()
    small = theta[layout.diagonal] < _NOISE * state.monte_carlo_errors[layout.diagonal] + _NOTHING
    theta[layout.diagonal[small]] = 0.0
    zero = layout.sds(theta) <= _NOTHING
    entries = theta[layout.fixed : layout.fixed + len(layout.entries[0])]
    entries[zero[layout.entries[0]]] = 0.0  # the last of a row that is nothing but noise
    notes = []
    if bool(zero.any()):
        notes.append(
            "a standard deviation of random effects is 0: the data vary between groups no more "
            "than chance; the model without it fits as well"
        )
    elif bool(small.any()):
        notes.append(
            "the covariance of the random effects is singular (a correlation of ±1): the data do "
            "not support as many random effects"
        )
    return theta, tuple(notes)


def _step(state: State, scale: Scale, names: tuple[str, ...]) -> Step:
    noise = state.largest_noise if state.noise is not None else math.inf
    return Step(state.iteration, state.averaging, scale.point(state.theta), noise, names)
