"""Compare estimators and kernels on one problem at different budgets.

A gradient averaged over B evaluations, with cost c of each simulation, has the mean squared error

    bias² + c × variance / B,

a line in 1/B: for small budgets the contender with the smallest c × variance is best, for large
ones that with the smallest bias. Two contenders have equal errors at

    B* = (c₂ variance₂ − c₁ variance₁) / (bias₁² − bias₂²).

Each contender is simulated independently, cycling through the rows of x0 and context so that each
is used equally often. With b̂ the difference between its mean and the reference, and Σ̂ the
covariance matrix of b̂, from the noise within rows and that of the reference, its squared bias is
‖b̂‖² − tr Σ̂, with the standard deviation √(4 b̂ᵀΣ̂b̂ + 2 tr Σ̂²). The variance is that within rows
too: differences between rows are not noise of an average over them. With more than 512 parameters,
gradients are projected first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mlmcgrad._checks import positive
from mlmcgrad.diagnostics._certify import Certificate, Z
from mlmcgrad.diagnostics._pilot import Simulator, Sketch
from mlmcgrad.diagnostics._plan import describe
from mlmcgrad.diagnostics._report import Report, Table
from mlmcgrad.estimators import Average, check_budget
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Context, Start
from mlmcgrad.problems import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)
_FEWEST = 64  # simulations
_NUMBERS = 2**25  # in memory: a quarter of a gigabyte
_LEAST, _LONGEST = 64, 2**14  # steps of a reference
_LEGEND = "Mean squared error of an average; * marks the best and those indistinguishable from it"


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Contender:
    """Bias, variance and cost of the estimate from one simulation; `_se` are standard errors.

    Attributes:
        name: as given.
        method: its estimator and its kernel.
        simulations: their number.
        squared: unbiased estimate of ‖bias‖²; it may be negative.
        variance: trace of the covariance matrix, within rows.
        cost: evaluations of a simulation, at least its number of steps.
    """

    name: str
    method: str
    simulations: int
    squared: float
    squared_se: float
    variance: float
    variance_se: float
    cost: float

    @property
    def bias2(self) -> Interval:
        """‖bias‖² and its interval."""
        reach = Z * self.squared_se
        value = max(0.0, self.squared)
        return Interval(value, max(0.0, self.squared - reach), max(0.0, self.squared + reach))

    @property
    def work_variance(self) -> float:
        """The variance of an average over a budget of one evaluation."""
        return self.cost * self.variance

    def error(self, budget: float) -> Interval:
        """Return the mean squared error of the average over a budget; infinite below `cost`."""
        if budget < self.cost:
            return Interval(math.inf, math.inf, math.inf)
        noise, noise_se = self.work_variance / budget, self.cost * self.variance_se / budget
        reach = Z * math.hypot(self.squared_se, noise_se)
        least = max(0.0, noise - Z * noise_se)  # bias² ≥ 0
        low, high = self.squared + noise - reach, self.squared + noise + reach
        value = self.bias2.value + noise
        return Interval(value, min(value, max(least, low)), max(value, high))


@dataclass(frozen=True)
class Crossover:
    """The budget above which `after` is the best contender, instead of `before`."""

    before: str
    after: str
    budget: Interval


@dataclass(frozen=True)
class Comparison(Report):
    """The result of `compare`.

    Attributes:
        rows: the contenders, in the given order.
        budgets: in evaluations, the smallest first; for the table and the figure.
        reference: description of the reference for biases.
    """

    rows: tuple[Contender, ...]
    budgets: tuple[float, ...]
    reference: str

    def __getitem__(self, name: str) -> Contender:
        """Return the contender with this name."""
        return {row.name: row for row in self.rows}[name]

    def best(self, budget: float) -> tuple[str, ...]:
        """Return the best contender, followed by those whose intervals overlap with its own.

        The result is empty if the budget is below the cost of every simulation.
        """
        able = [(row.error(budget), row.name) for row in self.rows if budget >= row.cost]
        able.sort(key=lambda each: each[0].value)
        return tuple(name for error, name in able if error.low <= able[0][0].high)

    @property
    def crossovers(self) -> tuple[Crossover, ...]:
        """The budgets at which the best contender changes, above the cost of each simulation."""
        now = self._first
        crossovers: list[Crossover] = []
        while True:
            later = [row for row in self.rows if row.bias2.value < now.bias2.value]
            if not later:
                return tuple(crossovers)
            # The first line to cross the present one; of several, that with the smallest bias.
            after = min(later, key=lambda row: (_meet(now, row).value, row.bias2.value))
            crossovers.append(Crossover(now.name, after.name, _meet(now, after)))
            now = after

    @property
    def _first(self) -> Contender:
        """The best contender at the smallest budget that allows a simulation of each."""
        budget = max(row.cost for row in self.rows)
        return min(self.rows, key=lambda row: (row.error(budget).value, row.bias2.value))

    def _parts(self) -> list[str | Table]:
        each = [("", "method", "bias²", "variance", "cost")]
        for row in self.rows:
            bias2, spread = row.bias2, Z * row.variance_se / max(row.variance, 1e-300)
            each.append(
                (
                    row.name,
                    row.method,
                    f"{bias2.value:.2g} ({bias2.low:.2g} to {bias2.high:.2g})",
                    f"{row.variance:.3g} ±{spread:.0%}",
                    f"{row.cost:.4g}",
                )
            )
        errors = [("evaluations", *(row.name for row in self.rows))]
        for budget in self.budgets:
            best = self.best(budget)
            cells = [_cell(row, budget, row.name in best) for row in self.rows]
            errors.append((f"{budget:.3g}", *cells))
        title = f"Estimates from one simulation, with 95 % intervals; bias against {self.reference}"
        return [title, Table(each, left=2), _LEGEND, Table(errors), self.verdict]

    @property
    def verdict(self) -> str:
        """The best contender by budget."""
        since = max(row.cost for row in self.rows)
        parts = [f"{self._first.name} is best at budgets above {since:.2g} evaluations"]
        for crossing in self.crossovers:
            budget = crossing.budget
            high = "∞" if budget.high == math.inf else f"{budget.high:.2g}"
            span = f"{budget.value:.2g} evaluations ({budget.low:.2g} to {high})"
            parts.append(f"above {span} {crossing.after} is best")
        return "; ".join(parts) + ("." if self.crossovers else "; no crossover was detected.")

    def plot(self) -> Figure:
        """Plot the mean squared error against the budget."""
        from mlmcgrad.diagnostics._figures import plot_comparison

        return plot_comparison(self)

    def record(self) -> dict[str, Any]:
        """Return all numbers and text for JSON; infinite numbers are None."""
        contenders = [
            {
                **asdict(row),
                "bias2": _numbers(row.bias2),
                "error": [{"budget": b, **_numbers(row.error(b))} for b in self.budgets],
            }
            for row in self.rows
        ]
        crossovers = [
            {"before": c.before, "after": c.after, **_numbers(c.budget)} for c in self.crossovers
        ]
        best = [{"budget": b, "names": list(self.best(b))} for b in self.budgets]
        return {
            "reference": self.reference,
            "contenders": contenders,
            "best": best,
            "crossovers": crossovers,
        }


def _meet(before: Contender, after: Contender) -> Interval:
    """Return B*, above which the second is better."""
    more = after.work_variance - before.work_variance
    more_se = math.hypot(after.cost * after.variance_se, before.cost * before.variance_se)
    less = before.bias2.value - after.bias2.value
    less_se = math.hypot(after.squared_se, before.squared_se)
    ends = (
        (more, less),
        (more - Z * more_se, less + Z * less_se),
        (more + Z * more_se, less - Z * less_se),
    )
    return Interval(*(max(0.0, m) / b if b > 0.0 else math.inf for m, b in ends))


def _cell(row: Contender, budget: float, best: bool) -> str:
    error = row.error(budget)
    if error.value == math.inf:
        return "–"
    return f"{error.value:.2g}{'*' if best else ''} ({error.low:.2g} to {error.high:.2g})"


def _numbers(interval: Interval) -> dict[str, float | None]:
    values = asdict(interval)
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


@dataclass(frozen=True)
class Reference:
    """A reference gradient, flattened over all parameters, with its standard error."""

    value: Tensor  # (d,) float64
    se: Tensor  # (d,), 0 if it is exact


Known: TypeAlias = Problem | Sequence[Tensor] | Reference | Certificate
"""A problem with an exact gradient, a tensor for each parameter, a `Reference` or a certificate."""


def as_reference(known: Known, source: Simulator) -> Reference:
    """Convert a given reference to the order of the gradient's parameters."""
    if isinstance(known, Reference):
        value, se = known.value, known.se
    elif isinstance(known, Certificate):
        value, se = known.gradient, known.se
    else:
        if isinstance(known, Sequence):
            tensors = list(known)
        else:
            by_leaf = dict(zip(known.parameters, known.exact_gradient(), strict=True))
            tensors = [by_leaf[p] for p in source.parameters]
        value = torch.cat([t.detach().flatten().double().cpu() for t in tensors])
        se = torch.zeros_like(value)
    if len(value) != source.dimension or not bool((value.isfinite() & se.isfinite()).all()):
        raise ValueError(
            f"reference must have a finite entry for each of the {source.dimension} parameters, "
            f"got {value} ± {se}"
        )
    return Reference(value, se)


@dataclass(frozen=True)
class Sample:
    """Moments of independent estimates, in the coordinates of a sketch."""

    count: int
    mean: Tensor  # (m,)
    noise: Tensor  # (m, m), covariance matrix of the mean
    variance: float
    variance_se: float
    cost: float


@np.errstate(under="ignore")  # harmless, whatever np.seterr says
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
        contenders: gradients by name, with the same `parameters`; the rest may differ.
        x0: where simulations start, (rows, *shape), or a dict with a start for each name.
        context: as for `gradient.backward`.
        reference: a problem with an exact gradient, tensors, or the result of `certify`. By
            default one is simulated with as many evaluations as all contenders together and the
            kernel of the contender with the longest simulations. Intervals include its noise, but
            not its bias.
        evaluations: for each contender, 10^5 by default; all rows are simulated at least twice.
        budgets: shown in the table and the figure, in evaluations.
        n: iteration at which schedules are evaluated; needed only if there are schedules.
        generator: source of all randomness. Levels are drawn independently for each simulation.
        report: called with the completed share.

    Example:
        >>> from mlmcgrad import MLMC, Average, MarkovGradient, problems
        >>> chain = problems.finite_chain(states=6, seed=1)
        >>> def by(estimator):
        ...     return MarkovGradient(
        ...         chain.kernel(), chain.loss, estimator, parameters=chain.parameters
        ...     )
        >>> comparison = compare(
        ...     {"short": by(Average(2)), "multilevel": by(MLMC(256))},
        ...     chain.start(1),
        ...     reference=chain,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> comparison.best(1e2), comparison.best(1e6)
        (('short',), ('multilevel',))
    """
    sources = _checked(contenders, x0, context, generator)
    positive(evaluations, "evaluations")
    for budget in budgets:
        positive(budget, "budgets")
    if not budgets:
        raise ValueError("budgets must contain a number of evaluations, got none")
    parts = len(sources) * (2 if reference is None else 1)
    samples = {}
    for name, source in sources.items():
        try:
            samples[name] = _sample(source, evaluations, n)
        except FloatingPointError as error:
            raise FloatingPointError(f"contender {name!r}: {error}") from error
        report(len(samples) / parts)
    if reference is None:
        longest = max(sources.values(), key=lambda source: source.gradient.estimator.longest(n))
        known, about = _long(longest, evaluations * len(sources), n)
        report(1.0)
    else:
        given, sketch = as_reference(reference, source), Sketch(source.dimension)
        variances = sketch.variances(given.se.double().square())
        known, about = (sketch(given.value.double()), torch.diag(variances)), "the reference"
    rows = []
    for name, sample in samples.items():
        bias = _squared_norm(sample.mean - known[0], sample.noise + known[1])
        own = sample.variance, sample.variance_se, sample.cost
        method = _method(sources[name].gradient, n)
        rows.append(Contender(name, method, sample.count, *bias, *own))
    return Comparison(tuple(rows), tuple(sorted(map(float, budgets))), about)


def _checked(
    contenders: Mapping[str, MarkovGradient], x0: Start, context: Context, rng: torch.Generator
) -> dict[str, Simulator]:
    """Return the simulations of each contender; raise if they cannot be compared."""
    if not contenders:
        raise ValueError("contenders must contain a gradient, got none")
    by_name = isinstance(x0, Mapping) and set(x0) == set(contenders)
    sources = {
        name: Simulator(gradient, x0[name] if by_name else x0, context, rng)
        for name, gradient in contenders.items()
    }
    first, *_ = sources
    for name, source in sources.items():
        if [*map(id, source.parameters)] != [*map(id, sources[first].parameters)]:
            raise ValueError(
                f"contenders must have the same parameters in the same order; those of {name!r} "
                f"and {first!r} differ"
            )
        if source.rows != sources[first].rows:
            raise ValueError(
                f"x0 must have the same number of rows for every contender, got {source.rows} for "
                f"{name!r} and {sources[first].rows} for {first!r}"
            )
    return sources


def _sample(source: Simulator, evaluations: float, n: int | None) -> Sample:
    """Simulate for about this number of evaluations, with independent levels."""
    estimator, rows = source.gradient.estimator, source.rows
    if getattr(estimator, "assignment", "independent") != "independent":
        estimator = replace(estimator, assignment="independent")  # type: ignore[type-var]
    sketch = Sketch(source.dimension)
    check_budget(estimator, rows, n, source.gradient.max_transitions)

    def draw(rounds: int) -> tuple[Tensor, float, float]:
        device = source.parameters[0].device
        some = source.at(torch.arange(rows, device=device).repeat(rounds))
        lengths = estimator.draw(some.rows, n, source.generator)
        each, outcome = some.simulate(lengths)
        steps = float(lengths.longest.sum())
        return sketch(each), max(float(outcome.evaluations), steps), steps

    drawn = [draw(1)]
    # Lengths are random with a known mean, and evaluations are proportional to them.
    cost = drawn[0][1] / drawn[0][2] * estimator.expected_length(n)
    rounds = math.ceil(max(evaluations / cost, _FEWEST) / rows)
    rounds = max(2, min(rounds, _NUMBERS // (rows * sketch.size))) - 1
    at_once = max(1, _NUMBERS // (rows * sketch.parameters))
    while rounds > 0:
        drawn.append(draw(min(at_once, rounds)))
        rounds -= at_once
    spent, steps = sum(part[1] for part in drawn), sum(part[2] for part in drawn)
    cost = spent / steps * estimator.expected_length(n)
    return moments(torch.cat([part[0] for part in drawn]), rows, cost)


def moments(each: Tensor, rows: int, cost: float) -> Sample:
    """Return moments of estimates that use the rows in turn, (rounds × rows, m)."""
    count, by_row = len(each), each.reshape(-1, rows, each.shape[1])
    within = (by_row - by_row.mean(0)).reshape(each.shape)  # rows are simulated equally often
    squares = within.square().sum(1)
    free = count / (count - rows)  # each row loses one degree of freedom
    return Sample(
        count=count,
        mean=each.mean(0),
        noise=within.T @ within / (count - rows) / count,
        variance=float(squares.mean()) * free,
        variance_se=float(squares.std()) * free**1.5 / math.sqrt(count),
        cost=cost,
    )


def _squared_norm(value: Tensor, noise: Tensor) -> tuple[float, float]:
    """Return the squared norm of a mean less its noise, (m, m), and the standard deviation."""
    variance = float(4.0 * value @ noise @ value + 2.0 * noise.square().sum())
    return float(value @ value - noise.trace()), math.sqrt(variance)


def _long(source: Simulator, effort: float, n: int | None) -> tuple[tuple[Tensor, Tensor], str]:
    """Run the kernel of a contender for long; return the result and its description."""

    def by(estimator: Average) -> Simulator:
        return replace(source, gradient=replace(source.gradient, estimator=estimator))

    step = _sample(by(Average(1)), 1.0, n).cost
    steps = int(effort / (max(_FEWEST, 2 * source.rows) * step))
    steps = max(_LEAST, min(_LONGEST, steps))
    before = 0 if source.independent else steps // 2
    long = by(Average(steps - before, burn_in=before))
    sample = _sample(long, effort, n)
    return (sample.mean, sample.noise), f"{sample.count} × {_method(long.gradient, n)}"


def _method(gradient: MarkovGradient, n: int | None) -> str:
    """Describe estimator and kernel, with schedules evaluated at n."""
    estimator, changes = gradient.estimator, {}
    for name in ("truncation", "length", "burn_in"):
        if n is not None and callable(schedule := getattr(estimator, name, None)):
            changes[name] = float(f"{schedule(n):.3g}")
    if changes:
        estimator = replace(estimator, **changes)  # type: ignore[type-var]
    return f"{describe(estimator)} by {type(gradient.kernel).__name__}"
