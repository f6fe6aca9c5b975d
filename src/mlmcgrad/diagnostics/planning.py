"""Which estimator, how long: the choice that a budget of evaluations can make the most of.

A pilot measures what all lengths up to some 2^L do; for every estimator of a grid this predicts
bias², variance and cost, and the mean squared error of a gradient averaged over a budget B,
bias² + work × variance / B. The plan is the estimator with the least of it.

How many simulations share the budget matters as much: one long chain forgets its start, and needs
no multilevel estimator. In a training each iteration has its own chains, and each datum its own
hidden variables, so that simulations have to be short on average.

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
from mlmcgrad.diagnostics.predicted import Cost, Predicted, predict
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start, take
from mlmcgrad.ranges import fraction, positive, whole
from mlmcgrad.schedules import Schedule

_MOST = 1e6  # evaluations of a pilot: more of them say nothing new
_USUAL = 1e6  # a budget, for the pilot of a plan that is given an accuracy
_BEYOND = 8  # levels after the pilot's last that are considered
_MOST_LEVELS = 16
_FEWEST = 8  # simulations: fewer do not even say how noisy they are
# r of the sum form. P(K ≥ l) ∝ √(V_l / C_l) is best: chains have V_l ∝ 2^−l, importance sampling
# up to 4^−l, and C_l ∝ 2^l.
_CONTINUATIONS = (0.65, 0.57, 0.5, 2.0**-1.25, 2.0**-1.5)


def plan(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    budget: float | None = None,
    accuracy: float | None = None,
    simulations: int | None = None,
    iteration: int = 1,
    after: Schedule | None = None,
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
        simulations: among how many the budget is divided at least, for example chains ×
            iterations of a training. By default the rows of x0, and not less than 8. For a plan
            within a training at least twice those that it has made: iterates before the plan
            have to be forgotten.
        iteration: of the training at which the plan is made, for its `schedule`, whose loss has
            to have the whole gradient for it: F(data) − F(x) and not only −F(x). 0 leaves out how
            far the training has to go, so that T rises when the bias begins to show in the noise.
        after: T_n of the training until now, what was used while waiting for a plan or an earlier
            plan's `schedule`; the new schedule begins with its T, and does not go below it: chains
            mix more slowly as a training goes on, and pilots are noisy. None for single steps.
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
        >>> start = chain.start(1)
        >>> plan(gradient, start, budget=1e6, generator=rng).multilevel  # 8 long chains
        False
        >>> plan(gradient, start, budget=1e6, simulations=200_000, generator=rng).multilevel
        True
    """
    if (budget is None) == (accuracy is None):
        raise ValueError(f"give either budget or accuracy, got {budget!r} and {accuracy!r}")
    for value, name in ((budget, "budget"), (accuracy, "accuracy")):
        if value is not None:
            positive(value, name)
    fraction(share, "share")
    whole(iteration, "iteration", least=0)
    if after is not None and not callable(after):
        raise TypeError(
            f"after must be a schedule, such as schedules.power(1.0, 0.5) or the `schedule` of an "
            f"earlier plan, got {after!r}; schedules.constant makes one of a number"
        )
    rows = gradient.kernel.chains(x0, context)
    among = max(_FEWEST, rows) if simulations is None else whole(simulations, "simulations")
    cost = simulation_cost(gradient, x0, context, generator)
    if budget is not None and among * cost.of(1.0) > budget:
        raise ValueError(
            f"budget must allow {among} simulations of one step, which take "
            f"{among * cost.of(1.0):g} evaluations, got {budget!r}; give a larger one, or fewer "
            "simulations"
        )
    spend = min(_MOST, share * (_USUAL if budget is None else budget))
    measured = pilot(gradient, x0, *context, evaluations=spend, generator=generator, report=report)
    decay = Decay(measured)
    longest = None if budget is None else budget / among
    candidates = [
        found
        for estimator in grid(measured.highest, nested=measured.nested)
        if longest is None or cost.of(estimator.expected_length()) <= longest
        for found in [predict(estimator, decay, cost)]
    ]
    if budget is None:
        assert accuracy is not None
        budget = _needed(candidates, accuracy, among)
        candidates = [c for c in candidates if c.cost * among <= budget]
    candidates.sort(key=lambda candidate: candidate.error(budget))
    return Choice(tuple(candidates), float(budget), among, max(1, rows), decay, iteration, after)


def _needed(candidates: list[Predicted], accuracy: float, simulations: int) -> float:
    """Evaluations with which an accuracy can be reached."""
    least = min(max(c.needed(accuracy), c.cost * simulations) for c in candidates)
    if least == math.inf:
        known = math.sqrt(min(c.bias.cautious for c in candidates))
        raise ValueError(
            f"accuracy must be above {known:.2g}, which the bias may have for all that the pilot "
            f"can say, got {accuracy!r}; a larger share makes the pilot longer"
        )
    return least


def grid(pilot: int, *, nested: bool) -> Iterator[Estimator]:
    """The estimators that are looked at, with lengths that are powers of two.

    Args:
        pilot: the highest level of the pilot.
        nested: whether it is importance sampling, which has no burn-in.
    """
    highest = min(_MOST_LEVELS, pilot + _BEYOND)
    for level in range(highest + 1):
        yield Average(2**level)
        if not nested:
            for before in range(level):
                yield Average(2**level - 2**before, burn_in=2**before)
    for first in range(pilot + 1):
        for last in range(first + 1, highest + 1):
            yield MLMC(2**last, base=2**first)
            for r in _CONTINUATIONS:
                yield MLMCSum(2**last, r, base=2**first)


def simulation_cost(
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
