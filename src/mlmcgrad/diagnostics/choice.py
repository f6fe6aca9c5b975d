"""What `plan` found: the estimator, why, and up to which budget something simpler is better.

Between a biased short simulation and a multilevel one the crossover is the budget

    B* = (WV_multilevel − WV_biased) / bias²,

WV being work × variance: below it the noise that the multilevel estimator adds costs more than the
bias that it removes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlmcgrad.diagnostics.decay import Decay
from mlmcgrad.diagnostics.predicted import Cost, Predicted
from mlmcgrad.estimators import Average, Estimator

_HEAVY = 100.0  # kurtosis from which on a variance is not to be trusted
_ROWS = 6


@dataclass(frozen=True)
class Choice:
    """An estimator for a budget, with all that it was compared with.

    Attributes:
        candidates: predictions, the best for the budget first.
        budget: evaluations over which the gradient is averaged.
        decay: bias and differences of levels, from the pilot.
        cost: evaluations of a simulation.
    """

    candidates: tuple[Predicted, ...]
    budget: float
    decay: Decay
    cost: Cost

    @property
    def best(self) -> Predicted:
        """The prediction for the estimator."""
        return self.candidates[0]

    @property
    def estimator(self) -> Estimator:
        """What to use."""
        return self.best.estimator

    @property
    def multilevel(self) -> bool:
        """Whether that is a multilevel estimator."""
        return not isinstance(self.estimator, Average)

    @property
    def error(self) -> float:
        """Root mean squared error that is predicted for the budget."""
        return math.sqrt(self.best.error(self.budget))

    @property
    def known(self) -> bool:
        """Whether the predicted error is known: its bias is measured, or small beside the noise."""
        uncertain = 2.0 * self.best.bias.se
        return self.trusted and uncertain <= 0.25 * self.best.error(self.budget)

    @property
    def trusted(self) -> bool:
        """Whether nothing in the pilot says that it cannot know."""
        return not self.warnings

    @property
    def crossover(self) -> float:
        """B*, between the best plain average and the best multilevel estimator.

        0 if the multilevel one is better at every budget, infinite if the average is.
        """
        plain = self._best_of(plain=True)
        multi = self._best_of(plain=False)
        more = multi.work_variance - plain.work_variance
        less = plain.bias.value - multi.bias.value
        if more <= 0.0:
            return 0.0 if less >= 0.0 else math.inf
        return more / less if less > 0.0 else math.inf

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the pilot cannot know."""
        pilot, found = self.decay.pilot, []
        if pilot.acceptance == 0.0:
            found.append("no step of the longest simulations moved: lower the step size")
        if not self.decay.mixes:
            found.append(
                f"the mean still drifts after {2**pilot.highest} steps: the chain has not mixed, "
                "and what it tends to is not known; a larger budget makes the pilot longer"
            )
        if pilot.kurtosis > _HEAVY:
            found.append(
                f"differences of levels have kurtosis {pilot.kurtosis:.0f}: rare large values "
                "decide the variance, which may be far larger than it seems; use a proposal with "
                "heavier tails, or more candidates"
            )
        return tuple(found)

    @property
    def verdict(self) -> str:
        """The plan in a sentence or two."""
        plain, multi = self._best_of(plain=True), self._best_of(plain=False)
        if not self.multilevel:
            gain = multi.error(self.budget) / plain.error(self.budget)
            return (
                f"Do not use multilevel here: {describe(self.estimator)} has a bias of "
                f"{math.sqrt(plain.bias.value):.2g} beside noise of "
                f"{math.sqrt(plain.work_variance / self.budget):.2g}, and the best multilevel "
                f"estimator {gain:.2g} times its mean squared error. "
                f"{self._from_where('Multilevel is better from')}"
            )
        gain = plain.error(self.budget) / multi.error(self.budget)
        return (
            f"Use {describe(self.estimator)}: the best plain average, "
            f"{describe(plain.estimator)}, has {gain:.2g} times its mean squared error. "
            f"{self._from_where('It is better from')}"
        )

    def __str__(self) -> str:
        rows = [f"{'':34s} {'bias':>9s} {'variance':>9s} {'cost':>9s} {'error':>9s}"]
        for each in self._shown():
            rows.append(
                f"{describe(each.estimator):34s} {math.sqrt(each.bias.value):9.3g} "
                f"{each.variance:9.3g} {each.cost:9.3g} {math.sqrt(each.error(self.budget)):9.3g}"
            )
        title = f"For a gradient averaged over {self.budget:.3g} evaluations"
        return "\n".join([title, *rows, self.verdict, *self.warnings])

    def _from_where(self, words: str) -> str:
        crossover = self.crossover
        if crossover == 0.0:
            return f"{words} the first evaluation on."
        if crossover == math.inf:
            return "No budget would change that."
        return f"{words} {crossover:.2g} evaluations on."

    def _best_of(self, *, plain: bool) -> Predicted:
        return next(c for c in self.candidates if isinstance(c.estimator, Average) == plain)

    def _shown(self) -> list[Predicted]:
        """The best of each kind, and plain averages that users would think of."""
        kinds: dict[str, Predicted] = {}
        for each in self.candidates:
            kinds.setdefault(type(each.estimator).__name__, each)
        short = [c for c in self.candidates if c.estimator in (Average(1), Average(8))]
        chosen = dict.fromkeys([*kinds.values(), *short])
        return sorted(chosen, key=lambda c: c.error(self.budget))[:_ROWS]


def describe(estimator: Estimator) -> str:
    """An estimator as one would write it, without what has its default."""
    name = type(estimator).__name__
    if isinstance(estimator, Average):
        after = f", burn_in={estimator.burn_in:g}" if estimator.burn_in else ""
        return f"{name}({estimator.length:g}{after})"
    truncation = getattr(estimator, "truncation", "")
    parts = [f"{truncation:g}" if isinstance(truncation, (int, float)) else repr(truncation)]
    r = getattr(estimator, "continuation", 0.5)
    parts += [f"{r:.3g}"] if r != 0.5 else []
    base = getattr(estimator, "base", 1)
    parts += [f"base={base}"] if base != 1 else []
    return f"{name}({', '.join(parts)})"
