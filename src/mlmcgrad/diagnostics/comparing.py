"""Several estimators and kernels on one problem: which is best, at which budget?

Each contender is simulated by itself, the rows of x0 and context in turn and equally often. With b̂
the distance of its mean from the reference, and Σ̂ the covariance matrix of b̂, which is that within
rows and that of the reference, its squared bias is ‖b̂‖² − tr Σ̂, with the standard deviation
√(4 b̂ᵀΣ̂b̂ + 2 tr Σ̂²). The variance is that within rows too: what differs between rows is no noise of
an average over them. For more than 512 parameters both are about a projection (`sketch.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from mlmcgrad.diagnostics.choice import describe
from mlmcgrad.diagnostics.comparison import Comparison, Contender
from mlmcgrad.diagnostics.per_chain import chain_gradients, required_parameters
from mlmcgrad.diagnostics.reference import Known, as_reference
from mlmcgrad.diagnostics.sketch import Sketch
from mlmcgrad.estimators import Average, Estimator, check_budget
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Importance
from mlmcgrad.kernels.base import Context, Start, check_call, take
from mlmcgrad.ranges import positive

BUDGETS = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)
_FEWEST = 64  # simulations
_NUMBERS = 2**25  # in memory: a quarter of a gigabyte
_LEAST, _LONGEST = 64, 2**14  # steps of a reference


@dataclass(frozen=True)
class Sample:
    """Moments of independent estimates, in the coordinates of a sketch."""

    count: int
    mean: Tensor  # (m,)
    noise: Tensor  # (m, m), covariance matrix of the mean
    variance: float
    variance_se: float
    cost: float


def compare(
    contenders: Mapping[str, MarkovGradient],
    x0: Start,
    *context: object,
    reference: Known | None = None,
    evaluations: float = 1e5,
    budgets: Sequence[float] = BUDGETS,
    n: int | None = None,
    generator: torch.Generator,
    report: Callable[[float], None] = lambda share: None,
) -> Comparison:
    """Measure bias, variance and cost of several gradients of the same parameters.

    Args:
        contenders: by name; each has its own kernel and estimator, and the same `parameters`.
        x0: where simulations start, (rows, *shape); or such a start for each name.
        context: as for `gradient.backward`.
        reference: a problem with an exact gradient, tensors, or a `long_run`. By default one is
            simulated, for as many evaluations as all contenders together, with the kernel of the
            one that has the longest simulations; its noise is counted, a bias that it has left is
            not.
        evaluations: for each contender; all rows are simulated twice at least.
        budgets: to show.
        n: iteration at which schedules are read; it may be left out where nothing is scheduled.
        generator: source of all randomness. Levels are drawn independently for each simulation.
        report: called with the share that is done.

    Example:
        >>> from mlmcgrad import MLMC, Average, MarkovGradient, problems
        >>> chain = problems.finite_chain(states=6, seed=1)
        >>> def by(estimator):
        ...     return MarkovGradient(
        ...         chain.kernel(), chain.loss, estimator, parameters=chain.parameters
        ...     )
        >>> found = compare(
        ...     {"short": by(Average(2)), "multilevel": by(MLMC(256))},
        ...     chain.start(1),
        ...     reference=chain,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> found.best(1e2), found.best(1e6)
        (('short',), ('multilevel',))
    """
    starts = _checked(contenders, x0, context, generator)
    positive(evaluations, "evaluations")
    for budget in budgets:
        positive(budget, "budgets")
    if not budgets:
        raise ValueError("budgets must hold a number of evaluations, got none")
    parts = [1.0] * len(contenders) + [float(len(contenders))] * (reference is None)
    done = iter([share / sum(parts) for share in accumulate(parts)])
    samples = {}
    for name, gradient in contenders.items():
        samples[name] = _sample(gradient, starts[name], context, evaluations, n, generator)
        report(next(done))
    if reference is None:
        name = max(contenders, key=lambda name: contenders[name].estimator.longest(n))
        effort = evaluations * len(contenders)
        known, words = _long(contenders, name, starts[name], context, effort, n, generator)
        report(1.0)
    else:
        known, words = _given(reference, next(iter(contenders.values()))), "the reference"
    return Comparison(
        tuple(
            _contender(name, contenders[name], n, sample, known) for name, sample in samples.items()
        ),
        tuple(sorted(map(float, budgets))),
        words,
    )


def _checked(
    contenders: Mapping[str, MarkovGradient], x0: Start, context: Context, rng: torch.Generator
) -> dict[str, Start]:
    """The start of each contender; refuses those that cannot be compared."""
    if not contenders:
        raise ValueError("contenders must hold a gradient, got none")
    by_name = isinstance(x0, Mapping) and set(x0) == set(contenders)
    starts = {name: x0[name] if by_name else x0 for name in contenders}
    first = next(iter(contenders))
    same = required_parameters(contenders[first])
    rows = check_call(contenders[first].kernel, starts[first], context, rng)
    for name, gradient in contenders.items():
        if [*map(id, required_parameters(gradient))] != [*map(id, same)]:
            raise ValueError(
                f"contenders must have the same parameters in the same order, those of {name!r} "
                f"are not those of {first!r}"
            )
        here = check_call(gradient.kernel, starts[name], context, rng)
        if here != rows:
            raise ValueError(
                f"x0 must have as many rows for every contender, got {here} for {name!r} and "
                f"{rows} for {first!r}"
            )
    return starts


def _sample(
    gradient: MarkovGradient,
    x0: Start,
    context: Context,
    evaluations: float,
    n: int | None,
    generator: torch.Generator,
) -> Sample:
    """Simulate for about so many evaluations."""
    parameters = required_parameters(gradient)
    sketch = Sketch(sum(p.numel() for p in parameters))
    rows, device = gradient.kernel.chains(x0, context), parameters[0].device
    estimator = _independent(gradient.estimator)
    check_budget(estimator, rows, n, gradient.max_transitions)

    def draw(rounds: int) -> tuple[Tensor, float, float]:
        index = torch.arange(rows, device=device).repeat(rounds)
        plan = estimator.plan(len(index), n, generator)
        (start,) = take((x0,), index)
        each, outcome = chain_gradients(
            gradient, start, *take(context, index), plan=plan, generator=generator
        )
        steps = float(plan.longest.sum())
        return sketch(each), max(float(outcome.evaluations), steps), steps

    found = [draw(1)]
    # Random lengths: their mean is known exactly, and evaluations go with them.
    per_step = found[0][1] / found[0][2]
    cost = per_step * estimator.expected_length(n)
    most = _NUMBERS // (rows * sketch.size)
    rounds = math.ceil(max(evaluations / cost, _FEWEST) / rows)
    rounds = max(2, min(rounds, most)) - 1
    at_once = max(1, _NUMBERS // (rows * sketch.parameters))
    while rounds > 0:
        found.append(draw(min(at_once, rounds)))
        rounds -= at_once
    spent, steps = sum(part[1] for part in found), sum(part[2] for part in found)
    cost = spent / steps * estimator.expected_length(n)
    return moments(torch.cat([part[0] for part in found]), rows, cost)


def moments(each: Tensor, rows: int, cost: float) -> Sample:
    """Moments of estimates that have the rows in turn.

    Args:
        each: (rounds × rows, m).
        rows: of x0.
        cost: of a simulation.
    """
    count, within = len(each), _within(each, rows)
    squares = within.square().sum(1)
    free = count / (count - rows)  # one degree of freedom less in each row
    return Sample(
        count=count,
        mean=each.mean(0),
        noise=within.T @ within / (count - rows) / count,
        variance=float(squares.mean()) * free,
        variance_se=float(squares.std()) * free**1.5 / math.sqrt(count),
        cost=cost,
    )


def _within(each: Tensor, rows: int) -> Tensor:
    """Deviations from the mean of the row: it is fixed how often each row is simulated."""
    by_row = each.reshape(-1, rows, each.shape[1])
    return (by_row - by_row.mean(0)).reshape(each.shape)


def _contender(
    name: str, gradient: MarkovGradient, n: int | None, sample: Sample, known: tuple[Tensor, Tensor]
) -> Contender:
    """The squared bias without the noise of the mean and of the reference."""
    value, covariance = known
    bias, noise = sample.mean - value, sample.noise + covariance
    spread = float(4.0 * bias @ noise @ bias + 2.0 * noise.square().sum())
    return Contender(
        name=name,
        method=_method(gradient.estimator, gradient, n),
        simulations=sample.count,
        squared=float(bias @ bias - noise.trace()),
        squared_se=math.sqrt(spread),
        variance=sample.variance,
        variance_se=sample.variance_se,
        cost=sample.cost,
    )


def _given(reference: Known, gradient: MarkovGradient) -> tuple[Tensor, Tensor]:
    """Value and covariance matrix of a reference, in the coordinates of the sketch."""
    known = as_reference(reference, gradient)
    sketch = Sketch(len(known.value))
    value = sketch(known.value.double())
    return value, torch.diag(sketch.variances(known.se.double().square()))


def _long(
    contenders: Mapping[str, MarkovGradient],
    name: str,
    x0: Start,
    context: Context,
    effort: float,
    n: int | None,
    generator: torch.Generator,
) -> tuple[tuple[Tensor, Tensor], str]:
    """A long run by the kernel of a contender, and what it is in words."""
    gradient = contenders[name]
    rows = gradient.kernel.chains(x0, context)
    step = _sample(_with(gradient, Average(1)), x0, context, 1.0, n, generator).cost
    count = max(_FEWEST, 2 * rows)
    steps = max(_LEAST, min(_LONGEST, int(effort / (count * step))))
    before = 0 if isinstance(gradient.kernel, Importance) else steps // 2
    long = _with(gradient, Average(steps - before, burn_in=before))
    sample = _sample(long, x0, context, effort, n, generator)
    return (sample.mean, sample.noise), f"{sample.count} × {_method(long.estimator, long, n)}"


def _with(gradient: MarkovGradient, estimator: Estimator) -> MarkovGradient:
    return dataclasses.replace(gradient, estimator=estimator)


def _independent(estimator: Estimator) -> Estimator:
    """With levels of its own for each simulation, so that all of them are independent."""
    if getattr(estimator, "assignment", "independent") == "independent":
        return estimator
    return dataclasses.replace(estimator, assignment="independent")  # type: ignore[type-var]


def _method(estimator: Estimator, gradient: MarkovGradient, n: int | None) -> str:
    """In words, with the numbers that schedules have at n."""
    names = [name for name in ("truncation", "length", "burn_in") if hasattr(estimator, name)]
    scheduled = {name: value for name in names if callable(value := getattr(estimator, name))}
    if scheduled and n is not None:
        now = {name: float(f"{schedule(n):.3g}") for name, schedule in scheduled.items()}
        estimator = dataclasses.replace(estimator, **now)  # type: ignore[type-var]
    return f"{describe(estimator)} by {type(gradient.kernel).__name__}"
