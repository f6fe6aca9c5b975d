"""What `plan` found: the estimator, why, and up to which budget something simpler is better.

Between a biased short simulation and a multilevel one the crossover is the budget

    B* = (WV_multilevel − WV_biased) / bias²,

WV being work × variance: below it the noise that the multilevel estimator adds costs more than the
bias that it removes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mlmcgrad.diagnostics.decay import Decay
from mlmcgrad.diagnostics.predicted import Predicted
from mlmcgrad.diagnostics.staging import family, stages
from mlmcgrad.diagnostics.truncations import Rung, Truncations, crossover, truncations
from mlmcgrad.estimators import Average, Estimator, Stages
from mlmcgrad.schedules import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEAVY = 100.0  # kurtosis from which on a variance is not to be trusted
_ALONE = 0.5  # share of one weight
_KNOWN = 0.25  # relative error within which a prediction is said to be known
_LEFT = 30.0  # by how much a squared bias after a burn-in may be off
_ROWS = 6
_STAGES = 4  # in words


@dataclass(frozen=True)
class Choice:
    """An estimator for a budget, with all that it was compared with.

    Attributes:
        candidates: predictions, the best for the budget first.
        budget: evaluations over which the gradient is averaged.
        simulations: among how many of them it is divided at least.
        chains: simulations of an iteration, the rows of x0; for `schedule`.
        decay: bias and differences of levels, from the pilot.
        iteration: of the training at which the plan was made; for `schedule`.
        after: T_n of the training until now, below which `schedule` does not go.
    """

    candidates: tuple[Predicted, ...]
    budget: float
    simulations: int
    chains: int
    decay: Decay
    iteration: int = 1
    after: Schedule | None = None

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
        """Whether the predicted squared error should be right to 25 %."""
        total = self.best.error(self.budget)
        noise = self.best.work_variance / self.budget
        level = round(math.log2(self.estimator.longest()) / 2.0)  # where most of the work is
        bias = self.best.bias
        # What a burn-in leaves is known to an order of magnitude only.
        doubt = _LEFT * bias.value if getattr(self.estimator, "burn_in", 0) else 2.0 * bias.se
        off = math.hypot(doubt, 2.0 * noise * self.decay.variance_error(level))
        return not self.warnings and self.decay.long_enough and off <= _KNOWN * total

    @property
    def crossover(self) -> float:
        """B*, between the best plain average and the best multilevel estimator.

        0 if the multilevel one is better at every budget, infinite if the average is.
        """
        plain, multi = self.plain, self.multi
        if plain is None or multi is None:
            return math.inf if multi is None else 0.0
        return crossover(plain, multi)

    @property
    def plain(self) -> Predicted | None:
        """The best plain average, if the budget allows one."""
        return next((c for c in self.candidates if isinstance(c.estimator, Average)), None)

    @property
    def multi(self) -> Predicted | None:
        """The best multilevel estimator, if the budget allows one."""
        return next((c for c in self.candidates if not isinstance(c.estimator, Average)), None)

    @cached_property
    def schedule(self) -> Truncations:
        """T_n for a training whose iterations have `chains` simulations each."""
        found = truncations(self.family, self.chains, self.iteration)
        return found.longer(self._before)

    @cached_property
    def scheduled(self) -> Stages:
        """For each T_n of the schedule the estimator of the family that has it."""
        return stages(self.family, self.schedule)

    @cached_property
    def family(self) -> list[Rung]:
        """For each T, from the present one on, the estimator that makes the most of evaluations."""
        return family(
            self.candidates,
            self.decay,
            simulations=self.chains * self.iteration,
            present=self._before(max(1, self.iteration)),
        )

    @property
    def _before(self) -> Truncations:
        """T_n of the training until now; single steps, if nothing was said."""
        return Truncations(((1, 1.0),)) if self.after is None else Truncations.of(self.after)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What the pilot cannot know."""
        pilot, found = self.decay.pilot, []
        if pilot.acceptance == 0.0:
            found.append("no step of the longest simulations moved: lower the step size")
        elif not self.decay.mixes and pilot.nested:
            found.append(
                f"the bias does not fall as 1/length yet with {2**pilot.highest} blocks: there are "
                "too few draws for these weights; use a better proposal, or a larger budget"
            )
        elif not self.decay.mixes:
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
        if pilot.largest > _ALONE:
            found.append(
                f"one draw of {2**pilot.highest} blocks has {pilot.largest:.0%} of the weight on "
                "average: the proposal misses the target; improve it before anything else"
            )
        return tuple(found)

    @property
    def verdict(self) -> str:
        """The plan in a sentence or two."""
        plain, multi = self.plain, self.multi
        if plain is None or multi is None:
            kind = "multilevel estimator" if multi is None else "plain average"
            return f"Use {describe(self.estimator)}: the budget does not allow any {kind}."
        if not self.multilevel:
            reason = (
                f"a bias of {math.sqrt(plain.bias.value):.2g} beside noise of "
                f"{math.sqrt(plain.work_variance / self.budget):.2g}"
            )
            if not self.decay.pilot.nested and self.decay.long_enough:
                reason += f" (the chain mixes in {max(1.0, self.decay.time):.0f} steps)"
            gain = multi.error(self.budget) / plain.error(self.budget)
            return (
                f"Do not use multilevel here: {describe(self.estimator)} has {reason}, and the "
                f"best multilevel estimator {gain:.2g} times its mean squared error. "
                f"{self._from_where('Multilevel is better from')}"
            )
        gain = plain.error(self.budget) / multi.error(self.budget)
        return (
            f"Use {describe(self.estimator)}: the best plain average, "
            f"{describe(plain.estimator)}, has {gain:.2g} times its mean squared error. "
            f"{self._from_where('Multilevel is better from')}"
        )

    def plot(self) -> Figure:
        """Levels of the pilot, and the error against the budget."""
        from mlmcgrad.diagnostics.figures import plot_choice

        return plot_choice(self)

    def __str__(self) -> str:
        rows = [f"{'':28s} {'bias':>8s} {'± ':>8s} {'variance':>9s} {'cost':>8s} {'error':>9s}"]
        for each in self.shown():
            bias = math.sqrt(each.bias.value)
            off = math.sqrt(each.bias.cautious) - bias
            rows.append(
                f"{describe(each.estimator):28s} {bias:8.2g} {off:8.1g} "
                f"{each.variance:9.3g} {each.cost:8.3g} {math.sqrt(each.error(self.budget)):9.2g}"
            )
        title = (
            f"A gradient averaged over {self.budget:.3g} evaluations, at least {self.simulations} "
            "simulations"
        )
        return "\n".join([title, *rows, self.verdict, *self.warnings])

    def shown(self) -> list[Predicted]:
        """The best of each kind, and plain averages that users would think of."""
        kinds: dict[str, Predicted] = {}
        for each in self.candidates:
            kinds.setdefault(type(each.estimator).__name__, each)
        short = [c for c in self.candidates if c.estimator in (Average(1), Average(8))]
        chosen = dict.fromkeys([*kinds.values(), *short])
        return sorted(chosen, key=lambda c: c.error(self.budget))[:_ROWS]

    def _from_where(self, words: str) -> str:
        if self.crossover == 0.0:
            return f"{words} the first evaluation on."
        if self.crossover == math.inf:
            return "No budget would change that."
        return f"{words} {self.crossover:.2g} evaluations on."


def describe(estimator: Estimator) -> str:
    """An estimator as one would write it, without what has its default."""
    if isinstance(estimator, Stages):
        words = [f"{describe(each)} from n = {n}" for n, each in estimator.steps]
        return "; ".join(words if len(words) <= _STAGES else [*words[:_STAGES], "…"])
    name = type(estimator).__name__
    if isinstance(estimator, Average):
        after = f", burn_in={estimator.burn_in:g}" if estimator.burn_in else ""
        return f"{name}({estimator.length:g}{after})"
    truncation = getattr(estimator, "truncation", "")
    parts = [f"{truncation:g}" if isinstance(truncation, (int, float)) else f"{truncation}"]
    r = getattr(estimator, "continuation", 0.5)
    parts += [f"{r:.3g}"] if r != 0.5 else []
    base = getattr(estimator, "base", 1)
    parts += [f"base={base}"] if base != 1 else []
    return f"{name}({', '.join(parts)})"
