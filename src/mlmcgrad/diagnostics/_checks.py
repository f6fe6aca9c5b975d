"""The checks of a certificate: levels, mixing, weights, law.

A correct kernel that has forgotten its start fails with a probability of at most 10^-5 in total: a
third of it each for levels, mixing and law, divided by the number of tests in each. A gradient that
was not simulated long enough to be tested is not certified either.

**The simulations.** Chains continue from their last states. Importance sampling has no state to
continue from: each segment is a set of new simulations, of the unbiased sum form with the length as
its base, so that the higher levels, which are rare and heavy-tailed, have little to correct.

**The law.** If x has the distribution π, one exact Metropolis step from x leaves every mean
unchanged: with y proposed symmetrically, or from q with w = π/q in place of π,

    E[ α(x, y) {g(y) − g(x)} ] = 0,      α(x, y) = 1 ∧ π(y)/π(x),

for every function g. The step starts from the states of a simulation, whatever its kernel; g are
the coordinates of x, their squares, and log π (or log w) itself. It needs neither derivatives nor a
smooth density, and its terms are bounded where those of importance sampling are not. States of 0
and 1 are moved by flipping one of them, others by normal jumps of random size in both directions,
so that terms linear in a jump cancel.

**Means.** If data rows differ, each has its own target, and the mean over the rows is estimated.
Its noise is that within rows: with n_s simulations of target s, n in total,

    Cov = Σ_s n_s/(n_s − 1) Σ_{c in s} (H_c − H̄_s)(H_c − H̄_s)ᵀ / n²,

with n − (number of targets) degrees of freedom.

Hotelling's test of a mean m ∈ R^d whose covariance C is estimated with ν degrees of freedom:

    T² = mᵀ C^{-1} m,     F = T² (ν − d + 1) / (ν d) ~ F(d, ν − d + 1)   if E[m] = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mlmcgrad.diagnostics._pilot import Simulator, beginning
from mlmcgrad.estimators import MLMCSum
from mlmcgrad.kernels import Finite, Gibbs, Importance
from mlmcgrad.kernels.base import Context, Outcome, take, tensors_in
from mlmcgrad.kernels.importance import MOST_CANDIDATES, ProposingKernel
from mlmcgrad.kernels.metropolis import probability
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure, concatenate

FALSE_ALARM = 1e-5
_EACH = FALSE_ALARM / 3.0
_PER_STATE = 5  # evaluations of a Metropolis step: of the state, and of four proposals
_RESOLVED = 0.25  # relative error of a change of log π that the check must detect
_STATES = 2**14  # maximum number of states that a Metropolis step starts from
_LARGEST = 0.5  # maximum share of one draw in the weight, mean over rows
_FEWEST, _DRAWS, _ROWS = 16, 1024, 64  # draws per row, and rows, of the check of weights
DIRECTIONS = 32  # of a state that are tested
_CONTINUATION = 2**-1.5
_AT_ONCE = 2**13
_LOWEST = -1e4  # of log π: outside the support
_MOVES = 4  # from each state
_SMALLEST = 1.5  # jumps are up to 10^1.5 times smaller than the largest

_ROUNDING = 1e-6  # relative size of differences that are rounding errors
_PER_COORDINATE = 4  # degrees of freedom for each coordinate of an inverted covariance matrix

Energy = Callable[[Tensor, Context], Tensor]
Propose = Callable[[Tensor, Context, torch.Generator], list[Tensor]]


@dataclass(frozen=True)
class Check:
    """One check of a certificate."""

    name: str
    passed: bool | None  # None: it could not be checked
    sentence: str
    p_value: float = 1.0  # of the hypothesis that nothing is wrong, for statistical tests

    @property
    def status(self) -> str:
        """Whether it passed, as text."""
        return {True: "passed", False: "FAILED", None: "not checked"}[self.passed]


@dataclass(frozen=True)
class Setting(Simulator):
    """Simulations to check, and the density of their target if the kernel does not know it."""

    log_density: Callable[..., Tensor] | None = None

    @cached_property
    def target(self) -> Tensor:
        """Index of the target of each simulation, (rows,)."""
        return targets(self.context, self.rows)

    def estimate(self, lengths: Lengths) -> tuple[Tensor, Outcome, int]:
        """Simulate these lengths; return estimates, outcome, and evaluations or steps."""
        estimates, outcome = self.simulate(lengths)
        return estimates.cpu(), outcome, max(outcome.evaluations, int(lengths.longest.sum()))

    @property
    def step_cost(self) -> int:
        """Evaluations of one step of a simulation, approximately a lower bound."""
        kernel = self.gradient.kernel
        return kernel.candidates if isinstance(kernel, ProposingKernel) else 1


def check_levels(setting: Setting, evaluations: float) -> tuple[Check, int]:
    """Compare simulations of length p with the first p steps of those of 2p, p = 1, 2, 4, ….

    Returns:
        The check, and the evaluations spent.
    """
    p_values, spent, length = [], 0, 1
    while True:
        means = []
        for longest in (length, 2 * length):
            estimates, _, more = setting.estimate(beginning(length, longest, setting.rows))
            means.append(Mean.of(estimates, setting.target))
            spent += more
        p_values.append(means[0].minus(means[1]).significance())
        if 3 * spent > evaluations:  # the next length would double the evaluations
            break
        length *= 2
    p = min(1.0, min(p_values) * len(p_values))
    worst = 2 ** p_values.index(min(p_values))
    if p >= _EACH:
        sentence = f"Lengths 1 … {2 * length} are consistent (p = {p:.2g})."
    else:
        sentence = (
            f"Simulations of length {worst} and the first {worst} steps of longer ones have "
            f"different means (p = {p:.1g}): the steps depend on the length of the chain. Check "
            "the kernel."
        )
    return Check("levels", p >= _EACH, sentence, p), spent


def check_mixing(
    setting: Setting, moved: float, before: Segment, first: Segment, second: Segment
) -> Check:
    """Compare consecutive segments of the same simulations, of which the last `moved`."""
    if moved == 0.0:
        sentence = "No chain has moved. Reduce the step size, or check x0."
        return Check("mixing", False, sentence, 0.0)
    a, b, c = (each.estimates for each in (before, first, second))
    if not setting.independent:  # functions of the states too
        a, b, c = (torch.cat([x.estimates, x.features()], 1) for x in (before, first, second))
    size = size_of(torch.cat([b, c]))
    drift = min(
        Mean.of(b - c, setting.target, size).significance(),
        Mean.of(a - (b + c) / 2.0, setting.target, size).significance(),
    )
    ratio, same = excess(b, c, setting.target)
    p = min(1.0, 4.0 * drift, 2.0 * same)
    if p >= _EACH:
        sentence = f"Means do not drift, and chains agree with each other (p = {p:.2g})."
        return Check("mixing", True, sentence, p)
    wrong = (
        f"Means still drift (p = {4.0 * drift:.1g}): the chains are too short."
        if 4.0 * drift < _EACH
        else f"The variance between chains is {ratio:.3g} times that within chains: they have not "
        "converged to the same distribution."
    )
    remedy = "Increase evaluations, start nearer to the target, or use a kernel that mixes faster."
    return Check("mixing", False, f"{wrong} {remedy}", p)


@torch.no_grad()
def check_weights(setting: Setting, evaluations: float) -> tuple[Check | None, int]:
    """Check importance weights, for kernels that have them; return the evaluations spent too."""
    kernel = setting.gradient.kernel
    if not isinstance(kernel, ProposingKernel):
        return None, 0
    rows = torch.arange(min(_ROWS, setting.rows))
    draws = max(_FEWEST, min(_DRAWS, int(evaluations / len(rows))))
    owner = rows.repeat_interleave(2 ** (draws.bit_length() - 1))
    _, log_w = kernel.fresh(setting.context, owner, setting.generator)
    each = torch.cat(log_w).cpu().reshape(len(rows), -1).nan_to_num(nan=-torch.inf)
    effective, largest = evenness(each)
    if largest <= _LARGEST:
        sentence = (
            f"{each.shape[1]} draws have an effective sample size of {effective:.3g}; the largest "
            f"weight is {largest:.1%} of the total."
        )
    else:
        sentence = (
            f"One of {each.shape[1]} draws has {largest:.0%} of the weight and dominates the "
            "estimate. Use a proposal that covers the target."
        )
    return Check("weights", largest <= _LARGEST, sentence), len(owner)


def check_law(
    setting: Setting, segments: tuple[Segment, Segment], evaluations: float
) -> tuple[Check, int]:
    """Make one exact Metropolis step from the states; return the evaluations spent too."""
    law = law_of(setting.gradient.kernel, setting.log_density)
    states = torch.cat([each.states for each in segments])
    if law is None or (law.propose is None and not walks(states)):
        sentence = "The stationary distribution was not checked: no log_density is given."
        return Check("law", None, sentence), 0
    if setting.independent:
        measure, spent = _weighted(setting, evaluations)
    else:
        measure, spent = _visited(states, min(_STATES, evaluations / _PER_STATE)), 0
    moved, size, more = increments(law, measure, setting.context, setting.rows, setting.generator)
    change, scale = Mean.of(moved, setting.target), size.mean(0)
    spent += more
    p = change.significance()
    # The resolution is that of log π, to which every move contributes.
    limit = student_quantile(_EACH / len(scale), change.freedom) * change.variance[-1].sqrt()
    resolution = float(limit / scale[-1]) if scale[-1] > 0.0 else 0.0
    if p < _EACH:
        sentence = (
            f"An exact Metropolis step from {len(measure):,} states changes their mean "
            f"(p = {p:.1g}): their distribution is not that of the density. Check the kernel, and "
            "the start if it is far from the target."
        )
    elif resolution > _RESOLVED:
        sentence = (
            f"The check detects errors of a change of log π above {resolution:.0%} only, not those "
            f"above {_RESOLVED:.0%}. Increase evaluations."
        )
    else:
        sentence = (
            f"An exact Metropolis step from {len(measure):,} states changes no mean (p = {p:.2g}); "
            f"an error of {resolution:.0%} in a change of log π would be detected."
        )
    return Check("law", p >= _EACH and resolution <= _RESOLVED, sentence, p), spent


def _visited(states: Tensor, most: float) -> Measure:
    """Return states of chains with equal weights."""
    times, count = states.shape[:2]
    kept = states[:: math.ceil(times / max(1, int(most) // count))]
    owner = torch.arange(count, device=states.device).repeat(len(kept))
    share = torch.full((len(owner),), 1.0 / len(kept), dtype=torch.float64, device=states.device)
    return Measure(kept.flatten(0, 1), owner, share)


def _weighted(setting: Setting, evaluations: float) -> tuple[Measure, int]:
    """Return draws with their coefficients in the unbiased estimate, and the evaluations."""
    kernel, base = setting.gradient.kernel, 1
    cost = (1.0 + _PER_STATE) * setting.rows * setting.step_cost
    cost *= unbiased(kernel, 1).expected_length()
    while 2.0 * base * cost <= evaluations:
        base *= 2
    lengths = unbiased(kernel, base).draw(setting.rows, None, setting.generator)
    simulation = setting.gradient.simulate(setting.x0, setting.context, lengths, setting.generator)
    measure = concatenate(list(simulation))
    return measure, simulation.outcome.evaluations


def evenness(log_w: Tensor) -> tuple[float, float]:
    """Return effective sample size and largest share of weights (rows, draws), means over rows."""
    share = log_w.double().softmax(1)
    return float((1.0 / share.square().sum(1)).mean()), float(share.max(1).values.mean())


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of all simulations."""

    estimates: Tensor  # (n, d) float64
    states: Tensor  # (times, n, *shape)
    evaluations: int = 0

    def joined(self, other: Segment) -> Segment:
        """Return this segment followed by another of the same length."""
        states = torch.cat([self.states, other.states])
        return Segment((self.estimates + other.estimates) / 2.0, states)

    def features(self) -> Tensor:
        """Return means over time of the coordinates of the state and their squares, (n, k)."""
        return features(self.states.flatten(0, 1)).reshape(*self.states.shape[:2], -1).mean(0)


def unbiased(kernel: object, base: int) -> MLMCSum:
    """Return the unbiased sum form, for importance sampling."""
    assert isinstance(kernel, Importance)
    most = max(base, min(2**20, MOST_CANDIDATES // kernel.candidates))
    return MLMCSum(math.inf, _CONTINUATION, base=base, max_transitions=most)


def features(x: Tensor, centre: Tensor | None = None) -> Tensor:
    """Return coordinates of states, (rows, *shape), and their squares about a centre, (k,).

    If there are many coordinates, fixed projections take their place.
    """
    flat = x.detach().reshape(len(x), -1).double().cpu()
    if flat.shape[1] > DIRECTIONS:
        flat = flat @ projection(flat.shape[1], DIRECTIONS)
    return torch.cat([flat, (flat if centre is None else flat - centre).square()], 1)


@dataclass(frozen=True)
class Law:
    """The target distribution of a simulation."""

    energy: Energy  # log π, (rows,), or log w if `propose` draws from q
    propose: Propose | None = None  # several y for each x; None for a walk


def law_of(kernel: Any, log_density: Callable[..., Tensor] | None) -> Law | None:
    """Return the target of a kernel by its density, weights or matrix; None if it has none."""
    density = log_density or getattr(kernel, "log_density", None)
    if callable(density):
        return Law(lambda x, context: density(x, *context))
    if isinstance(kernel, Gibbs):
        return Law(lambda x, context: -kernel.free_energy(x))
    if isinstance(kernel, Finite):
        return _finite(kernel)
    if isinstance(kernel, ProposingKernel):
        return Law(
            kernel.weigh,
            lambda x, context, rng: [kernel.draw(context, len(x), rng) for _ in range(_MOVES)],
        )
    return None


@torch.no_grad()
def increments(
    law: Law, measure: Measure, context: Context, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """Return Σ_j c_j α {g(y_j) − g(x_j)} of each simulation, and the same with absolute values.

    The c_j sum to 1 in each simulation. Returns (count, k) each, and evaluations of the density.
    """
    points = measure.points
    propose = law.propose or _walk(points, measure.owner)
    k = min(DIRECTIONS, points[0].numel())
    centre = features(points[: 4 * _AT_ONCE])[:, :k].mean(0)
    moved = torch.zeros(count, 2 * k + 1, dtype=torch.float64)
    size, evaluations = torch.zeros_like(moved), 0
    for begin in range(0, len(points), _AT_ONCE):
        rows = slice(begin, begin + _AT_ONCE)
        x, owner = points[rows], measure.owner[rows]
        about = take(context, owner)
        before, g = _energy(law, x, about), features(x, centre)
        proposals = propose(x, about, generator)
        c, owner = measure.coefficient[rows].double().cpu()[:, None], owner.cpu()
        for y in proposals:
            gain = (_energy(law, y, about) - before)[:, None]
            accepted = probability(gain)
            step = accepted * torch.cat([features(y, centre) - g, gain], 1) / len(proposals)
            step = torch.where(accepted > 0.0, step, 0.0)
            moved.index_add_(0, owner, c * step)
            size.index_add_(0, owner, c.abs() * step.abs())
        evaluations += len(x) * (1 + len(proposals))
    return moved, size, evaluations


def _energy(law: Law, x: Tensor, context: Context) -> Tensor:
    value = law.energy(x, context)
    return value.detach().double().cpu().nan_to_num(nan=_LOWEST).clamp(min=_LOWEST)


def walks(points: Tensor) -> bool:
    """Return whether a random walk can move these states."""
    return points.is_floating_point() or _binary(points)


def _binary(points: Tensor) -> bool:
    return bool(((points == 0) | (points == 1)).all())


def _walk(points: Tensor, owner: Tensor) -> Propose:
    """Return symmetric moves scaled by the spread of these states."""
    if _binary(points):
        return _flip
    flat = points.reshape(len(points), -1)
    within = Mean.of(flat.double().cpu(), owner.cpu())
    # Chains that hardly move have a spread only between them.
    spread = (within.spread.square().sum(0) * len(flat)).sqrt()
    spread = torch.where(spread > 0.0, spread, flat.double().cpu().std(0))
    scale = (2.4 / flat.shape[1] ** 0.5 * spread).to(points).reshape(points.shape[1:])

    def jump(x: Tensor, context: Context, generator: torch.Generator) -> list[Tensor]:
        options: Any = {"dtype": x.dtype, "device": x.device, "generator": generator}
        moves = []
        for _ in range(_MOVES // 2):
            power = torch.rand(len(x), *(1,) * (x.dim() - 1), **options)
            move = scale * 10.0 ** (-_SMALLEST * power) * torch.randn(x.shape, **options)
            moves += [x + move, x - move]
        return moves

    return jump


def _flip(x: Tensor, context: Context, generator: torch.Generator) -> list[Tensor]:
    """Flip one unit of each state, chosen at random."""
    flat, moves = x.reshape(len(x), -1), []
    for _ in range(_MOVES):
        size, device = (len(x), 1), generator.device
        unit = torch.randint(flat.shape[1], size, generator=generator, device=device).to(x.device)
        moves.append(flat.scatter(1, unit, 1 - flat.gather(1, unit)).reshape(x.shape))
    return moves


def _finite(kernel: Finite) -> Law | None:
    """Return the stationary distribution of the matrix, with uniform proposals."""
    if isinstance(kernel.matrix, Tensor) and kernel.matrix.dim() == 3:
        return None  # one matrix per chain

    def matrix(context: Context) -> Tensor:
        transition = kernel.matrix if isinstance(kernel.matrix, Tensor) else kernel.matrix(*context)
        return transition.detach().double().cpu()

    def energy(x: Tensor, context: Context) -> Tensor:
        law = _stationary(matrix(context)).expand(len(x), -1)
        return law.gather(1, x.long().cpu()[:, None])[:, 0].log()

    def anywhere(x: Tensor, context: Context, generator: torch.Generator) -> list[Tensor]:
        size, shape = matrix(context).shape[-1], (_MOVES, *x.shape)
        states = torch.randint(size, shape, generator=generator, device=generator.device)
        return list(states.to(x))

    return Law(energy, anywhere)


def _stationary(matrix: Tensor) -> Tensor:
    """Solve π(I − P + 1 1ᵀ) = 1ᵀ, whose solution has the sum 1, (S,) or (rows, S)."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    one = torch.ones_like(matrix[..., :1])
    return torch.linalg.solve((identity - matrix + 1.0).mT, one)[..., 0].clamp(min=0.0)


def _special() -> Any:
    """Import `scipy.special`, which the core does not need."""
    try:
        import scipy.special
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "tests of gradients need scipy; pip install 'mlmcgrad[diagnostics]'", name=error.name
        ) from error
    return scipy.special


def fisher_tail(x: float, a: float, b: float) -> float:
    """Return P(F(a, b) > x)."""
    return float(_special().fdtrc(a, b, x))


def student_quantile(probability: float, freedom: float) -> float:
    """Return the x with P(|t| > x) = probability.

    Example:
        >>> round(student_quantile(0.05, 10), 3)
        2.228
    """
    return -float(_special().stdtrit(freedom, probability / 2.0))


def targets(context: Context, rows: int) -> Tensor:
    """Return the index of the target of each row, (rows,); equal contexts share a target."""
    columns = [t.detach().reshape(len(t), -1).double().cpu() for t in tensors_in(context)]
    if not columns:
        return torch.zeros(rows, dtype=torch.int64)
    return torch.unique(torch.cat(columns, 1), dim=0, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean with its noise."""

    value: Tensor  # (d,)
    spread: Tensor  # (n, d): spreadᵀ spread is the covariance of the mean
    freedom: int
    rounding: Tensor  # (d,): differences up to this size are rounding errors

    @classmethod
    def of(cls, x: Tensor, target: Tensor, size: Tensor | None = None) -> Mean:
        """Return the mean of one row per simulation, (n, d), with these targets, (n,).

        `size` is that of the numbers whose differences are in x, (d,), by default that of x.
        """
        count = torch.bincount(target)
        sums = torch.zeros(len(count), x.shape[1], dtype=x.dtype).index_add(0, target, x)
        centred = x - (sums / count.clamp(min=1)[:, None])[target]
        scale = (count / (count - 1).clamp(min=1)).sqrt()[target]
        freedom = int((count - 1).clamp(min=0).sum())
        rounding = _ROUNDING * (size_of(x) if size is None else size)
        return cls(x.mean(0), centred * scale[:, None] / len(x), freedom, rounding)

    def minus(self, other: Mean) -> Mean:
        """Return the difference of two means from independent simulations."""
        return Mean(
            self.value - other.value,
            torch.cat([self.spread, other.spread]),
            min(self.freedom, other.freedom),
            torch.maximum(self.rounding, other.rounding),
        )

    @property
    def variance(self) -> Tensor:
        """Variance of the mean and of rounding, (d,)."""
        return self.spread.square().sum(0) + self.rounding.square()

    @property
    def t(self) -> Tensor:
        """The mean in standard errors, (d,); 0 for a coordinate that is always 0."""
        return torch.where(self.value == 0.0, 0.0, self.value / self.variance.sqrt())

    def significance(self) -> float:
        """Return the p-value of the hypothesis that all coordinates are 0, by the largest."""
        largest = float(self.t.abs().max())
        return min(1.0, len(self.value) * fisher_tail(largest * largest, 1.0, self.freedom))

    def against(self, value: Tensor) -> float:
        """Return the p-value of the hypothesis that `value` is the mean, by Hotelling's test.

        If there are few simulations for the number of coordinates, fixed projections are tested.
        """
        deviation, spread = self.value - value, self.spread
        scale = self.variance.sqrt()
        used = scale > 0.0
        if not bool(used.any()):
            return 1.0 if bool((deviation == 0.0).all()) else 0.0
        deviation, spread = deviation[used] / scale[used], spread[:, used] / scale[used]
        most = max(1, self.freedom // _PER_COORDINATE)
        if len(deviation) > most:
            directions = projection(len(deviation), most)
            deviation, spread = deviation @ directions, spread @ directions
        # Linearly dependent coordinates are regularised by the size of rounding errors.
        covariance = spread.T @ spread + _ROUNDING * torch.eye(len(deviation)).to(spread)
        statistic = float(deviation @ torch.linalg.solve(covariance, deviation))
        d, degrees = len(deviation), self.freedom - len(deviation) + 1
        return fisher_tail(statistic * degrees / (self.freedom * d), d, degrees)


def excess(first: Tensor, second: Tensor, target: Tensor) -> tuple[float, float]:
    """Compare the variance between simulations with that within them.

    Returns the largest ratio of Var(first + second) to Var(first − second) of the means over two
    segments, (n, k), and its p-value. The ratio is 1 for independent segments, and infinite if no
    simulation ever moves.
    """
    size = size_of(torch.cat([first, second]))
    sums, gaps = Mean.of(first + second, target, size), Mean.of(first - second, target, size)
    between = sums.variance
    ratio = float(torch.where(between > 0.0, between / gaps.variance, 1.0).max())
    return ratio, min(1.0, len(between) * fisher_tail(ratio, sums.freedom, sums.freedom))


def size_of(x: Tensor) -> Tensor:
    """Return the root mean square of each column."""
    return x.square().mean(0).sqrt()


def projection(dimension: int, directions: int) -> Tensor:
    """Return fixed random directions, (dimension, directions)."""
    shape, rng = (dimension, directions), torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=torch.float64, generator=rng) / dimension**0.5
