"""Which estimator, how long: the choice that a budget of evaluations can make the most of.

A pilot measures what all lengths up to some 2^L do; for every estimator of a grid this predicts
bias², variance and cost, and the mean squared error of a gradient averaged over a budget B,
bias² + work × variance / B. The plan is the estimator with the least of it.

Reference:
    Giles (2015), Multilevel Monte Carlo methods, for the allocation of work to levels; Rhee, Glynn
    (2015) and Kahalé (2019, arXiv:1909.02876) for randomised levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from mlmcgrad.diagnostics.choice import Choice
from mlmcgrad.diagnostics.decay import Decay
from mlmcgrad.diagnostics.per_chain import chain_gradients
from mlmcgrad.diagnostics.pilot import pilot
from mlmcgrad.diagnostics.predicted import FEWEST, Cost, predict
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start, take
from mlmcgrad.ranges import fraction, positive

_MOST = 2e6  # evaluations of a pilot: more of them say nothing new
_BEYOND = 8  # levels after the pilot's last that are considered
_MOST_LEVELS = 16
# r of the sum form. P(K ≥ l) ∝ √(V_l / C_l) is best: chains have V_l ∝ 2^−l, importance sampling
# up to 4^−l, and C_l ∝ 2^l.
_CONTINUATIONS = (0.6, 0.5, 2.0**-1.25, 2.0**-1.5)


def plan(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    budget: float | None = None,
    accuracy: float | None = None,
    generator: torch.Generator,
    share: float = 0.05,
    report: Callable[[float], None] = lambda share: None,
) -> Choice:
    """Choose an estimator for a budget, or for an accuracy.

    Args:
        gradient: with `parameters` given; its kernel and loss are used, its estimator is not.
        x0: where simulations start, (rows, *shape); the pilot uses the rows in turn.
        context: as for `gradient.backward`.
        budget: evaluations over which the gradient will be averaged, for example all those of a
            training's last iterations. The mean squared error is made as small as it allows.
        accuracy: or the root mean squared error that shall be reached, as cheaply as possible.
        generator: source of all randomness.
        share: of the budget that the pilot may spend; of 10^6 evaluations for an accuracy.
        report: called with the share of the pilot that is done.

    Example:
        >>> from mlmcgrad import MLMC, MarkovGradient, problems
        >>> rng = torch.Generator().manual_seed(0)
        >>> chain = problems.finite_chain(states=6, seed=1)
        >>> gradient = MarkovGradient(
        ...     chain.kernel(), chain.loss, MLMC(2), parameters=chain.parameters
        ... )
        >>> found = plan(gradient, chain.start(1), budget=1e6, generator=rng)
        >>> found.multilevel
        True
    """
    if (budget is None) == (accuracy is None):
        raise ValueError(f"give either budget or accuracy, got {budget!r} and {accuracy!r}")
    positive(budget if accuracy is None else accuracy, "budget" if accuracy is None else "accuracy")
    fraction(share, "share")
    spend = min(_MOST, share * (budget if budget is not None else 1e6))
    measured = pilot(
        gradient, x0, *context, evaluations=spend, generator=generator, report=report
    )
    decay = Decay(measured)
    cost = _cost(gradient, x0, context, generator)
    candidates = [
        predict(estimator, decay, cost)
        for estimator in grid(measured.highest, _affordable(cost, budget), nested=measured.nested)
    ]
    if accuracy is not None:
        reach = [c for c in candidates if c.bias.value < accuracy**2]
        budget = min(c.work_variance / (accuracy**2 - c.bias.value) for c in reach)
    assert budget is not None
    candidates.sort(key=lambda candidate: candidate.risk(budget))
    return Choice(tuple(candidates), float(budget), decay, cost)


def _affordable(cost: Cost, budget: float | None) -> int:
    """The highest level of which a budget allows some simulations."""
    return _MOST_LEVELS if budget is None else max(0, int(math.log2(budget / cost.of(1.0) / FEWEST)))


def grid(pilot: int, affordable: int, *, nested: bool) -> Iterator[Estimator]:
    """The estimators that are looked at, with lengths that are powers of two.

    Args:
        pilot: the highest level of the pilot.
        affordable: the highest level that the budget allows.
        nested: whether it is importance sampling, which has no burn-in.
    """
    highest = min(_MOST_LEVELS, affordable, pilot + _BEYOND)
    for level in range(highest + 1):
        yield Average(2**level)
        if not nested:
            for before in range(level):
                yield Average(2**level - 2**before, burn_in=2**before)
    for first in range(min(pilot, highest) + 1):
        for last in range(first + 1, highest + 1):
            yield MLMC(2**last, base=2**first)
            for r in _CONTINUATIONS if nested else _CONTINUATIONS[:2]:
                yield MLMCSum(2**last, r, base=2**first)


def _cost(
    gradient: MarkovGradient, x0: Start, context: tuple[object, ...], generator: torch.Generator
) -> Cost:
    """From two short simulations."""
    (start,) = take((x0,), torch.zeros(1, dtype=torch.int64))
    row = take(context, torch.zeros(1, dtype=torch.int64))
    spent = []
    for steps in (1, 3):
        layout = Average(steps).plan(1, None, generator)
        _, outcome = chain_gradients(gradient, start, *row, plan=layout, generator=generator)
        spent.append(outcome.evaluations)
    step = (spent[1] - spent[0]) / 2.0
    # A kernel without a model, of a transition matrix, has steps only.
    return Cost(0.0, 1.0) if step == 0.0 else Cost(spent[0] - step, step)


