"""Choose the estimator and its length for a budget of evaluations.

A pilot measures simulations of the lengths 1, 2, 4, …, 2^L. For every estimator of a grid it
predicts bias², variance and cost, and with them the mean squared error of a gradient averaged over
a budget of B evaluations,

    bias² + work × variance / B.

The plan is the estimator with the smallest error.

An estimator draws a simulation of length 2^j with weights a_l on H^{(2^l)} with a known probability
(`lengths_for`), so with α_l = Σ_{m≥l} a_m on the differences D_l,

    E[Ĥ | α] = Σ_l α_l δ_l,     Var Ĥ = E[αᵀ Cov(D) α] + Var E[Ĥ | α]     (traces),

for each row of the data. Differences between rows are not noise, because all rows are used equally.

**Crossover.** A multilevel estimator is better than a biased short simulation at budgets above

    B* = (WV_multilevel − WV_biased) / bias²,

where WV is work × variance: below it, the noise that the multilevel estimator adds costs more than
the bias that it removes.

**Simulations.** The number of simulations that share the budget matters as much: one long chain
forgets its start and needs no multilevel estimator. In a training each iteration has its own
chains, and each datum its own hidden variables, so simulations have to be short on average.

**T_n of a training.** With a truncation s, training converges to the point where the mean of its
estimator is 0; there the gradient equals the bias. The distance still to go is measured by the mean
itself: m_s = ‖E[Ĥ_s]‖² at iteration n_0, where the plan is made, and m_s n_0 / n later, as for
constant step sizes. After n iterations of N chains the squared error is

    bias_s² + (variance_s / N + m_s n_0) / n,

because noise is averaged over all of them. For the same evaluations a longer truncation l has only
n cost_s / cost_l iterations to reduce both noise and distance, so it is better for n above

    n* = (cost_l (variance_l + F) − cost_s (variance_s + F)) / (N cost_s (bias_s² − bias_l²)),
    F = N n_0 m_s.

T_n rises from the shortest T to the first one that is better (of several, the best), and so on.
With F = 0 it is the formula for a gradient at a fixed θ, averaged over B = n N cost_s evaluations.

**The estimator of each T.** Every estimator with the truncation T has the bias of T (averages with
a burn-in are left out: their bias is known to an order of magnitude only). So for each T, and for
all B, the best estimator has the smallest

    cost × (variance + F).

Far from convergence it is the cheapest, because iterations count; near the end it is the one with
the smallest work × variance, where a larger base or another continuation often gains a factor of
two. Only the part of m that exceeds the noise of the pilot is used (`Decay.left`). A pilot cannot
know the tails of differences that it has not measured, so T ends soon after its longest simulation.

Reference:
    Giles (2015), Multilevel Monte Carlo methods, for the allocation of work to levels; Rhee, Glynn
    (2015) and Kahalé (2019, arXiv:1909.02876) for randomised levels.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import torch

from mlmcgrad._checks import positive, whole
from mlmcgrad.diagnostics._decay import Decay, Squared
from mlmcgrad.diagnostics._pilot import Simulator, run_pilot
from mlmcgrad.diagnostics._report import Report, Table
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum, Stages
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start
from mlmcgrad.schedules import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHARE = 0.05  # of the budget, for the pilot
_MOST = 1e6  # evaluations of a pilot: more do not improve the plan
_USUAL = 1e6  # assumed budget if an accuracy is given
_BEYOND = 8  # levels after the pilot's last that are considered
_MOST_LEVELS = 16
_FEWEST = 8  # simulations: fewer do not even show how noisy they are
# r of the sum form. P(K ≥ l) ∝ √(V_l / C_l) is best: chains have V_l ∝ 2^−l, importance sampling
# up to 4^−l, and C_l ∝ 2^l.
_CONTINUATIONS = (0.65, 0.57, 0.5, 2.0**-1.25, 2.0**-1.5)
_HEAVY = 100.0  # kurtosis above which a measured variance is unreliable
_ALONE = 0.5  # share of one weight
_UNMIXED = 0.5  # probability of a mode that is too slow for the pilot
_KNOWN = 0.25  # relative error of a prediction that counts as known
_LEFT = 30.0  # factor by which a squared bias after a burn-in may be wrong
_ROWS = 6
_STAGES = 4  # of an estimator that are printed
_SHOWN = 8  # steps of a schedule that are printed
NEVER = 2**53  # iterations
_HIGHEST = 2.0**20  # T
_FURTHER = 2  # levels after the pilot's last whose variance a schedule uses


@dataclass(frozen=True)
class Truncations:
    """A schedule of T that rises in steps.

    Attributes:
        steps: first iteration and T of each step.

    Example:
        >>> schedule = Truncations(((1, 2.0), (100, 8.0)))
        >>> schedule(99), schedule(100)
        (2.0, 8.0)
    """

    steps: tuple[tuple[int, float], ...]

    def __call__(self, n: SupportsIndex) -> float:
        """Return T at iteration n."""
        number = whole(n, "n")
        return self.steps[bisect_right(self.steps, number, key=lambda step: step[0]) - 1][1]

    @classmethod
    def of(cls, schedule: Schedule) -> Truncations:
        """Return the powers of two that a non-decreasing schedule has reached at each n.

        Example:
            >>> from mlmcgrad import schedules
            >>> Truncations.of(schedules.power(1.0, 0.5)).steps[:3]
            ((1, 1.0), (4, 2.0), (16, 4.0))
        """
        if isinstance(schedule, Truncations):
            return schedule
        steps = [(1, 2.0 ** math.floor(math.log2(max(1.0, schedule(1)))))]
        while (further := 2.0 * steps[-1][1]) <= min(_HIGHEST, schedule(NEVER)):
            steps.append((bisect_left(range(NEVER), further, lo=1, key=schedule), further))
        return cls(tuple(steps))

    def longer(self, other: Truncations) -> Truncations:
        """Return the maximum of two schedules.

        Example:
            >>> Truncations(((1, 2.0), (9, 4.0))).longer(Truncations(((1, 1.0), (5, 4.0)))).steps
            ((1, 2.0), (5, 4.0))
        """
        steps: list[tuple[int, float]] = []
        for n in sorted({n for n, _ in (*self.steps, *other.steps)}):
            truncation = max(self(n), other(n))
            if not steps or truncation > steps[-1][1]:
                steps.append((n, truncation))
        return Truncations(tuple(steps))

    def __str__(self) -> str:
        first, *later = self.steps
        parts = [f"T = {first[1]:g}", *(f"{t:g} from n = {n}" for n, t in later)]
        return ", ".join(parts if len(parts) <= _SHOWN else [*parts[: _SHOWN - 1], "…"])


@dataclass(frozen=True)
class Predicted:
    """Bias, variance and cost predicted for the estimate from one simulation."""

    estimator: Estimator
    bias: Squared  # ‖bias‖² and its standard error
    variance: float  # trace of the covariance matrix
    cost: float  # evaluations

    @property
    def work_variance(self) -> float:
        """The variance of an average over a budget of one evaluation."""
        return self.cost * self.variance

    def error(self, budget: float) -> float:
        """Return the mean squared error of the average over a budget of evaluations."""
        return self.bias.value + self.work_variance / budget

    def needed(self, accuracy: float) -> float:
        """Return the evaluations for a root mean squared error; infinite if the bias exceeds it."""
        left = accuracy * accuracy - self.bias.cautious
        return self.work_variance / left if left > 0.0 else math.inf


@dataclass(frozen=True)
class FamilyMember:
    """The estimator for one truncation."""

    truncation: float
    predicted: Predicted
    left: float  # ‖E[Ĥ]‖², the squared distance of the training from convergence with this T


@dataclass(frozen=True)
class Plan(Report):
    """An estimator for a budget, and the predictions for all candidates.

    Attributes:
        candidates: predictions, the best for the budget first.
        budget: evaluations over which the gradient is averaged.
        simulations: minimum number of simulations that share the budget.
        chains: simulations of an iteration, the rows of x0; for `schedule`.
        decay: bias and differences of levels, from the pilot.
        iteration: iteration of the training at which the plan was made; for `schedule`.
        after: T_n of the training so far, a lower bound of `schedule`.
    """

    candidates: tuple[Predicted, ...]
    budget: float
    simulations: int
    chains: int
    decay: Decay
    iteration: int
    after: Truncations

    @property
    def best(self) -> Predicted:
        """The prediction for the chosen estimator."""
        return self.candidates[0]

    @property
    def estimator(self) -> Estimator:
        """The chosen estimator."""
        return self.best.estimator

    @property
    def multilevel(self) -> bool:
        """Whether the chosen estimator is multilevel."""
        return not isinstance(self.estimator, Average)

    @property
    def error(self) -> float:
        """Root mean squared error predicted for the budget."""
        return math.sqrt(self.best.error(self.budget))

    @property
    def known(self) -> bool:
        """Whether the predicted squared error should be right to 25 %."""
        total = self.best.error(self.budget)
        noise = self.best.work_variance / self.budget
        level = round(math.log2(self.estimator.longest()) / 2.0)  # where most of the work is
        bias = self.best.bias
        # The bias after a burn-in is known to an order of magnitude only.
        doubt = _LEFT * bias.value if getattr(self.estimator, "burn_in", 0) else 2.0 * bias.se
        off = math.hypot(doubt, 2.0 * noise * self.decay.variance_error(level))
        return not self.warnings and self.decay.long_enough and off <= _KNOWN * total

    @property
    def crossover(self) -> float:
        """B*, between the best plain average and the best multilevel estimator.

        0 if the multilevel one is better at every budget, infinite if the average is.
        """
        return math.inf if self.multi is None else crossover(self.plain, self.multi)

    @property
    def plain(self) -> Predicted:
        """The best plain average."""
        return next(c for c in self.candidates if isinstance(c.estimator, Average))

    @property
    def multi(self) -> Predicted | None:
        """The best multilevel estimator, if the budget allows one."""
        return next((c for c in self.candidates if not isinstance(c.estimator, Average)), None)

    @cached_property
    def schedule(self) -> Truncations:
        """T_n for a training whose iterations have `chains` simulations each."""
        return truncations(self.family, self.chains, self.iteration).longer(self.after)

    @cached_property
    def scheduled(self) -> Stages:
        """The estimators of the family for the T_n of the schedule."""
        return stages(self.family, self.schedule)

    @cached_property
    def family(self) -> list[FamilyMember]:
        """The most efficient estimator for each T, beginning with the present T."""
        return family(
            self.candidates,
            self.decay,
            simulations=self.chains * self.iteration,
            present=self.after(max(1, self.iteration)),
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Reasons not to trust the pilot."""
        pilot, reasons = self.decay.pilot, []
        longest = pilot.groups[-1]
        if longest.moved == 0.0:
            reasons.append("No step of the longest simulations was accepted: reduce the step size.")
        elif self.decay.approach.slow >= _UNMIXED and pilot.nested:
            reasons.append(
                f"With {2**pilot.highest} blocks the bias does not fall as 1/length yet: there are "
                "too few draws for these weights. Improve the proposal, or increase pilot."
            )
        elif self.decay.approach.slow >= _UNMIXED:
            reasons.append(
                f"The mean still drifts after {2**pilot.highest} steps: the chain has not mixed, "
                "and its limit is unknown. Increase pilot to run longer simulations."
            )
        if pilot.kurtosis > _HEAVY:
            reasons.append(
                f"Differences of levels have kurtosis {pilot.kurtosis:.0f}: rare large values "
                "dominate the variance, which may be far larger than measured. Use a proposal with "
                "heavier tails, or more candidates."
            )
        if longest.largest > _ALONE:
            reasons.append(
                f"On average one draw of {2**pilot.highest} blocks has {longest.largest:.0%} of "
                "the weight: the proposal misses the target. Improve the proposal first."
            )
        return tuple(reasons)

    @property
    def verdict(self) -> str:
        """The plan in a sentence or two."""
        plain, multi = self.plain, self.multi
        if multi is None:
            use = f"Use {describe(self.estimator)}"
            return f"{use}: the budget is too small for any multilevel estimator."
        if self.multilevel:
            gain = plain.error(self.budget) / multi.error(self.budget)
            return (
                f"Use {describe(self.estimator)}: its mean squared error is {gain:.2g} times "
                f"smaller than that of the best plain average, {describe(plain.estimator)}. "
                f"{self._where_multilevel_pays()}"
            )
        gain = multi.error(self.budget) / plain.error(self.budget)
        mixing = ""
        if not self.decay.pilot.nested and self.decay.long_enough:
            mixing = f"; the chain mixes in {max(1.0, self.decay.time):.0f} steps"
        return (
            f"Multilevel does not pay here: {describe(self.estimator)} has a mean squared error "
            f"{gain:.2g} times smaller than the best multilevel estimator "
            f"(bias {math.sqrt(plain.bias.value):.2g}, "
            f"noise {math.sqrt(plain.work_variance / self.budget):.2g}{mixing}). "
            f"{self._where_multilevel_pays()}"
        )

    def plot(self) -> Figure:
        """Plot the levels of the pilot, and the error against the budget."""
        from mlmcgrad.diagnostics._figures import plot_plan

        return plot_plan(self)

    def _parts(self) -> list[str | Table]:
        title = (
            f"A gradient averaged over {self.budget:.3g} evaluations, at least {self.simulations} "
            "simulations"
        )
        rows = [("", "bias", "±", "variance", "cost", "error")]
        for each in self.shown():
            bias = math.sqrt(each.bias.value)
            rows.append(
                (
                    describe(each.estimator),
                    f"{bias:.2g}",
                    f"{math.sqrt(each.bias.cautious) - bias:.1g}",
                    f"{each.variance:.3g}",
                    f"{each.cost:.3g}",
                    f"{math.sqrt(each.error(self.budget)):.2g}",
                )
            )
        return [title, Table(rows), self.verdict, *self.warnings]

    def shown(self) -> list[Predicted]:
        """Return the best candidate of each kind, and two common plain averages."""
        kinds: dict[str, Predicted] = {}
        for each in self.candidates:
            kinds.setdefault(type(each.estimator).__name__, each)
        short = [c for c in self.candidates if c.estimator in (Average(1), Average(8))]
        chosen = dict.fromkeys([*kinds.values(), *short])
        return sorted(chosen, key=lambda c: c.error(self.budget))[:_ROWS]

    def _where_multilevel_pays(self) -> str:
        if self.crossover == 0.0:
            return "Multilevel is better at every budget."
        if self.crossover == math.inf:
            return "The plain average is better at every budget."
        return f"Multilevel is better at budgets above {self.crossover:.2g} evaluations."


def crossover(short: Predicted, long: Predicted) -> float:
    """Return B*, above which the second is better: 0 if it always is, infinite if it never is."""
    return crossing(long.work_variance - short.work_variance, short.bias.value - long.bias.value)


@dataclass(frozen=True)
class Cost:
    """Evaluations of a simulation: of its start, and of each step."""

    start: float
    step: float

    def of(self, steps: float) -> float:
        """Return the evaluations of a simulation with this number of steps."""
        return self.start + self.step * steps


@np.errstate(under="ignore")  # harmless, whatever np.seterr says
def plan(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    budget: float | None = None,
    accuracy: float | None = None,
    pilot: float | None = None,
    simulations: int | None = None,
    iteration: int = 1,
    after: Schedule | None = None,
    generator: torch.Generator,
    report: Callable[[float], None] = lambda share: None,
) -> Plan:
    """Choose an estimator for a budget, or for an accuracy.

    Args:
        gradient: with `parameters` given; its kernel and loss are used, its estimator is not.
        x0: where simulations start, (rows, *shape); the pilot uses the rows in turn.
        context: as for `gradient.backward`.
        budget: evaluations that the training will spend on this gradient, for example those of its
            last iterations. The plan minimises the mean squared error of the average over them.
        accuracy: instead of a budget, the root mean squared error to reach as cheaply as possible.
        pilot: evaluations that this call may spend, at most 10^6. By default 5 % of the budget, or
            50 000 if an accuracy is given.
        simulations: the minimum number of simulations that share the budget, for example chains ×
            iterations of a training. By default the rows of x0, and at least 8. For a plan
            within a training use at least twice the number already made, because the iterates
            before the plan have to be forgotten.
        iteration: the iteration of the training at which the plan is made, for `Plan.schedule`. Put
            averaged parameters into the model before (`optim.Averaged.applied`): at an iterate of a
            constant step size, the plan measures the noise of that step size, not the distance to
            convergence. The loss must have the whole gradient: F(data) − F(x) and not only −F(x).
            0 ignores how far the training is from convergence, so T rises as soon as the bias
            exceeds the noise.
        after: T_n of the training so far: the schedule used before the first plan, or the
            `schedule` of an earlier plan. The new schedule starts at its T and never falls below
            it, because chains mix more slowly as a training proceeds, and pilots are noisy. None
            for single steps.
        generator: source of all randomness.
        report: called with the completed share of the pilot.

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
    for value, name in ((budget, "budget"), (accuracy, "accuracy"), (pilot, "pilot")):
        if value is not None:
            positive(value, name)
    whole(iteration, "iteration", least=0, most=NEVER)
    if after is not None and not callable(after):
        raise TypeError(
            "after must be a schedule, for example schedules.power(1.0, 0.5), "
            f"schedules.constant(8.0) or the `schedule` of an earlier plan, got {after!r}"
        )
    source = Simulator(gradient, x0, context, generator)
    rows = source.rows
    among = max(_FEWEST, rows)
    if simulations is not None:
        among = whole(simulations, "simulations", most=NEVER)
    cost = simulation_cost(source)
    if budget is not None and among * cost.of(1.0) > budget:
        raise ValueError(
            f"budget must be ≥ {among * cost.of(1.0):g}, the evaluations of {among} simulations of "
            f"one step, got {budget!r}; increase it, or reduce simulations"
        )
    spend = _SHARE * (_USUAL if budget is None else budget) if pilot is None else pilot
    measured = run_pilot(source, min(_MOST, spend), report=report)
    decay = Decay(measured)
    most = math.inf if budget is None else budget / among
    candidates = [
        predict(estimator, decay, cost)
        for estimator in grid(measured.highest, nested=measured.nested)
        if cost.of(estimator.expected_length()) <= most
    ]
    if budget is None:
        assert accuracy is not None
        budget = min(max(c.needed(accuracy), c.cost * among) for c in candidates)
        if budget == math.inf:
            reachable = math.sqrt(min(c.bias.cautious for c in candidates))
            raise ValueError(
                f"accuracy must be > {reachable:.2g}, the smallest bias that this pilot can "
                f"guarantee, got {accuracy!r}; a pilot with more evaluations may guarantee less"
            )
        candidates = [c for c in candidates if c.cost * among <= budget]
    candidates.sort(key=lambda candidate: candidate.error(budget))
    before = Truncations(((1, 1.0),)) if after is None else Truncations.of(after)
    return Plan(tuple(candidates), float(budget), among, max(1, rows), decay, iteration, before)


def grid(pilot: int, *, nested: bool) -> Iterator[Estimator]:
    """Yield estimators for a pilot with this highest level; `nested` kernels need no burn-in."""
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


def simulation_cost(source: Simulator) -> Cost:
    """Measure the cost by two short simulations."""
    one = source.at(torch.zeros(1, dtype=torch.int64))
    spent = [one.run(Average(steps))[1].evaluations for steps in (1, 3)]
    step = (spent[1] - spent[0]) / 2.0
    # A kernel without a model, such as a transition matrix, has steps only.
    return Cost(0.0, 1.0) if step == 0.0 else Cost(spent[0] - step, step)


def predict(estimator: Estimator, decay: Decay, cost: Cost) -> Predicted:
    """Predict bias, variance and cost of an estimator with lengths that are powers of two.

    The estimator is `Average` (its burn-in 0 or as long as its length), `MLMC` or `MLMCSum`.
    """
    within, between, steps = 0.0, 0.0, 0.0
    weights: dict[int, float] = {}  # E[a_l]
    every = combinations(estimator)
    highest = max(lengths[-1].bit_length() - 1 for _, lengths, _ in every)
    products, mean = decay.products(highest), torch.zeros(highest + 1, dtype=torch.float64)
    for probability, lengths, a in every:
        top = lengths[-1].bit_length() - 1
        alpha = torch.zeros(highest + 1, dtype=torch.float64)
        for length, weight in zip(lengths, a, strict=True):
            alpha[: length.bit_length()] += weight
            level = length.bit_length() - 1
            weights[level] = weights.get(level, 0.0) + probability * weight
        some = alpha[: top + 1]
        within += probability * float(some @ decay.covariance(top) @ some)
        between += probability * float(alpha @ products @ alpha)
        mean += probability * alpha
        steps += probability * lengths[-1]
    between = max(0.0, between - float(mean @ products @ mean))
    # Weights that telescope to 0 are not exactly 0 after rounding.
    bias = decay.bias({level: a for level, a in weights.items() if abs(a) > 1e-9})
    variance = within + between
    if isinstance(estimator, Average):
        skip = every[0][1][0] if len(every[0][1]) > 1 else 0
        variance = decay.average_variance(every[0][1][-1] - skip, skip) or variance
    return Predicted(estimator, bias, variance, cost.of(steps))


def combinations(estimator: Estimator) -> list[tuple[float, list[int], list[float]]]:
    """Return probability, lengths p_j and weights a_j of every simulation that may be drawn."""
    if isinstance(estimator, Average):
        drawn = [(1.0, estimator.draw(1, None, torch.Generator()))]
    else:
        assert isinstance(estimator, (MLMC, MLMCSum))
        drawn = [
            (probability, estimator.lengths_for(torch.tensor([level])))
            for probability, level, _ in outcomes(estimator)
        ]
    every = []
    for probability, lengths in drawn:
        terms = lengths.terms[0].tolist()
        if any(math.log2(length) % 1 for length in terms):
            raise ValueError(f"estimator must have lengths that are powers of two, got {terms}")
        every.append((probability, terms, (lengths.weights * lengths.terms)[0].tolist()))
    return every


def outcomes(estimator: MLMC | MLMCSum) -> list[tuple[float, int, int]]:
    """Return probability, a level K and length of every estimate that may be drawn."""
    kappa, base = estimator.truncation_level(), estimator.base
    if isinstance(estimator, MLMC):
        law = estimator.levels
        levels = [(law.pmf(k), k, law.length(k, base)) for k in range(1, kappa + 1)]
        # Beyond the truncation only the base term remains.
        return [(law.survival(kappa), kappa + 1, law.length(0, base)), *levels]
    r = estimator.continuation
    return [(r**k * (1.0 - r if k < kappa else 1.0), k, base * 2**k) for k in range(kappa + 1)]


def describe(estimator: Estimator) -> str:
    """Return an estimator as Python code, without arguments that have their default."""
    if isinstance(estimator, Stages):
        parts = [f"{describe(each)} from n = {n}" for n, each in estimator.steps]
        return "; ".join(parts if len(parts) <= _STAGES else [*parts[:_STAGES], "…"])
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


def family(
    candidates: Iterable[Predicted], decay: Decay, *, simulations: int, present: float = 1.0
) -> list[FamilyMember]:
    """Return the best estimator for each T from the present one, after N n_0 `simulations`."""

    def work(each: Predicted) -> float:
        return each.cost * (each.variance + simulations * decay.left(_level(each.estimator)))

    best: dict[int, Predicted] = {}
    for each in sorted(candidates, key=work):
        measured = _level(each.estimator) <= decay.highest + _FURTHER
        if measured and not getattr(each.estimator, "burn_in", 0):
            best.setdefault(each.estimator.longest(), each)
    first = min(present, max(best))
    return [
        FamilyMember(float(t), best[t], decay.left(_level(best[t].estimator)))
        for t in sorted(best)
        if t >= first
    ]


def stages(members: Sequence[FamilyMember], schedule: Truncations) -> Stages:
    """Return the estimators of a family for the T_n of a schedule.

    For a T of an earlier schedule that the family does not contain, the estimator of the next
    shorter T is used with the truncation replaced.
    """

    def at(truncation: float) -> Estimator:
        shorter = [each for each in members if each.truncation <= truncation]
        estimator = shorter[-1].predicted.estimator
        if estimator.longest() == truncation:
            return estimator
        if isinstance(estimator, Average):
            return Average(truncation)
        return dataclasses.replace(estimator, truncation=truncation)  # type: ignore[type-var]

    return Stages(tuple((n, at(truncation)) for n, truncation in schedule.steps))


def _level(estimator: Estimator) -> int:
    return estimator.longest().bit_length() - 1


def truncations(members: Sequence[FamilyMember], chains: int, iteration: int) -> Truncations:
    """Return T_n for a training with N = `chains` that is planned at n_0 = `iteration`.

    The members begin with the shortest T. Iteration 0 ignores the distance from convergence.
    """
    start = max(1, iteration)
    now, n, steps = 0, start, [(1, members[0].truncation)]
    while now + 1 < len(members):
        present = members[now]
        when = [_better(present, later, chains, iteration) for later in members[now + 1 :]]
        first = min(when)
        if first > NEVER:
            break
        n = max(n, math.ceil(first))
        # Of those that are better by then, the best: several may be better at once.
        able = [i for i, each in enumerate(when, now + 1) if each <= n]
        now = min(able, key=lambda i: (_error(members[i], present, n, chains, iteration), -i))
        begin = 1 if n == start else n
        if steps[-1][0] == begin:
            steps.pop()
        steps.append((begin, members[now].truncation))
    return Truncations(tuple(steps))


def _error(each: FamilyMember, present: FamilyMember, n: int, chains: int, iteration: int) -> float:
    """Return the squared error after the evaluations of n iterations with the present estimator."""
    noise = each.predicted.variance / chains + iteration * present.left
    return each.predicted.bias.value + noise * each.predicted.cost / (n * present.predicted.cost)


def _better(short: FamilyMember, long: FamilyMember, chains: int, iteration: int) -> float:
    """Return n*, above which the second is better."""
    left = chains * iteration * short.left
    more = long.predicted.cost * (long.predicted.variance + left)
    more -= short.predicted.cost * (short.predicted.variance + left)
    less = short.predicted.bias.value - long.predicted.bias.value
    return crossing(more, chains * short.predicted.cost * less)


def crossing(more: float, less: float) -> float:
    """Return more / less, above which less bias pays: 0 if it always does, infinite if never."""
    if more <= 0.0:
        return 0.0 if less >= 0.0 else math.inf
    return more / less if less > 0.0 else math.inf
