"""What `compare` found: bias², variance and cost of each contender, and who is best at a budget.

A gradient averaged over B evaluations, cost c for each simulation, has the mean squared error

    bias² + c × variance / B,

a line in 1/B: for small budgets the contender with the least c × variance is best, for large ones
that with the least bias. Two of them meet at

    B* = (c₂ variance₂ − c₁ variance₁) / (bias₁² − bias₂²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Z = 1.959963984540054  # of the 95 % confidence interval


@dataclass(frozen=True)
class Interval:
    """A number, and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Whether the intervals have a point in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Contender:
    """One simulation's estimate; `_se` are standard errors.

    Attributes:
        name: as the caller has it.
        method: its estimator and its kernel.
        simulations: that were made.
        squared: estimate of ‖bias‖² without the noise of the means; it may be negative.
        variance: trace of the covariance matrix, within rows.
        cost: evaluations of a simulation, at least its steps.
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
        """‖bias‖²."""
        reach = Z * self.squared_se
        value = max(0.0, self.squared)
        return Interval(value, max(0.0, self.squared - reach), max(0.0, self.squared + reach))

    @property
    def work_variance(self) -> float:
        """The variance that a budget of one evaluation would have."""
        return self.cost * self.variance

    def error(self, budget: float) -> Interval:
        """Mean squared error of the average over a budget; infinite below one simulation's."""
        if budget < self.cost:
            return Interval(math.inf, math.inf, math.inf)
        noise, noise_se = self.work_variance / budget, self.cost * self.variance_se / budget
        reach = Z * math.hypot(self.squared_se, noise_se)
        least = max(0.0, noise - Z * noise_se)  # no bias is negative
        low, high = self.squared + noise - reach, self.squared + noise + reach
        value = self.bias2.value + noise
        return Interval(value, min(value, max(least, low)), max(value, high))


@dataclass(frozen=True)
class Crossover:
    """Where the contender `before` stops being the best, and `after` begins to be."""

    before: str
    after: str
    budget: Interval


@dataclass(frozen=True)
class Comparison:
    """Contenders on one problem.

    Attributes:
        rows: in the order in which they were given.
        budgets: in evaluations, from the smallest; for the table and the figure.
        reference: what biases are measured against, in words.
    """

    rows: tuple[Contender, ...]
    budgets: tuple[float, ...]
    reference: str

    def __getitem__(self, name: str) -> Contender:
        """The contender of this name."""
        for row in self.rows:
            if row.name == name:
                return row
        known = ", ".join(repr(row.name) for row in self.rows)
        raise KeyError(f"name must be one of {known}, got {name!r}")

    def best(self, budget: float) -> tuple[str, ...]:
        """The best contender, followed by those that may be: their intervals overlap with its.

        Nobody, where the budget is below that of every simulation.
        """
        able = [row for row in self.rows if budget >= row.cost]
        able.sort(key=lambda row: row.error(budget).value)
        return tuple(row.name for row in able if row.error(budget).overlaps(able[0].error(budget)))

    @property
    def crossovers(self) -> tuple[Crossover, ...]:
        """Who follows whom as the best, at budgets that allow a simulation of every contender."""
        now = self._first
        found: list[Crossover] = []
        while True:
            later = [row for row in self.rows if row.bias2.value < now.bias2.value]
            if not later:
                return tuple(found)
            # The line that the present one meets first; of several, the one with the least bias.
            after = min(later, key=lambda row: (_meet(now, row).value, row.bias2.value))
            found.append(Crossover(now.name, after.name, _meet(now, after)))
            now = after

    @property
    def _first(self) -> Contender:
        """The best at the least budget that allows a simulation of every contender."""
        budget = max(row.cost for row in self.rows)
        return min(self.rows, key=lambda row: (row.error(budget).value, row.bias2.value))

    def __str__(self) -> str:
        wide = max(12, *(len(row.name) for row in self.rows))
        about = max(6, *(len(row.method) for row in self.rows))
        lines = [
            f"Bias against {self.reference}; of one simulation, with 95 % intervals",
            f"{'':{wide}s} {'':{about}s} {'bias²':>9s} {'':19s} {'variance':>9s} {'':>6s} "
            f"{'cost':>8s}",
        ]
        for row in self.rows:
            bias2, spread = row.bias2, Z * row.variance_se / max(row.variance, 1e-300)
            lines.append(
                f"{row.name:{wide}s} {row.method:{about}s} {bias2.value:9.2g} "
                f"{f'{bias2.low:.2g} to {bias2.high:.2g}':>19s} {row.variance:9.3g} "
                f"{f'±{spread:.0%}':>6s} {row.cost:8.4g}"
            )
        lines.append("Mean squared error of an average, * for the best and what may be as good")
        columns = [max(25, len(row.name)) for row in self.rows]
        names = " ".join(f"{r.name:>{w}s}" for r, w in zip(self.rows, columns, strict=True))
        lines.append(f"{'evaluations':{wide}s} {names}")
        for budget in self.budgets:
            best = self.best(budget)
            cells = [_cell(row, budget, row.name in best) for row in self.rows]
            line = " ".join(f"{c:>{w}s}" for c, w in zip(cells, columns, strict=True))
            lines.append(f"{f'{budget:.3g}':{wide}s} {line}")
        return "\n".join([*lines, self.verdict])

    @property
    def verdict(self) -> str:
        """Who is best, from which budget on."""
        parts = [
            f"{c.after} from {c.budget.value:.2g} evaluations on "
            f"({c.budget.low:.2g} to {_words(c.budget.high)})"
            for c in self.crossovers
        ]
        since = max(row.cost for row in self.rows)
        first = f"Best is {self._first.name} from {since:.2g} evaluations on"
        return ", ".join([first, *parts]) + ("." if parts else ", as far as can be told.")

    def plot(self) -> Figure:
        """The mean squared error against the budget."""
        from mlmcgrad.diagnostics.figures import plot_comparison

        return plot_comparison(self)

    def record(self) -> dict[str, Any]:
        """Everything in numbers and text; what is infinite is None."""
        return {
            "reference": self.reference,
            "contenders": [
                {
                    **{name: getattr(row, name) for name in ("name", "method", "simulations")},
                    "bias2": _numbers(row.bias2),
                    **{k: getattr(row, k) for k in ("variance", "variance_se", "cost")},
                    "error": [
                        {"budget": budget, **_numbers(row.error(budget))} for budget in self.budgets
                    ],
                }
                for row in self.rows
            ],
            "best": [{"budget": b, "names": list(self.best(b))} for b in self.budgets],
            "crossovers": [
                {"before": c.before, "after": c.after, **_numbers(c.budget)}
                for c in self.crossovers
            ],
        }


def _meet(before: Contender, after: Contender) -> Interval:
    """B*, from which on the second is better."""
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
    between = f"{error.low:.2g}–{error.high:.2g}"
    return f"{error.value:.2g}{'*' if best else ' '} {between:>16s}"


def _numbers(interval: Interval) -> dict[str, float | None]:
    values = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _words(budget: float) -> str:
    return "never" if budget == math.inf else f"{budget:.2g}"
