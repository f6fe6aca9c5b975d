"""Certify the gradient at a θ: estimate it with negligible bias, and check the simulations.

Independent chains start from the rows of x0, used equally often, and their length is doubled
repeatedly. The first half of each chain is discarded. The noise is estimated from the spread
between chains of the same target, so no autocorrelation time is needed. Importance sampling uses
the unbiased sum form. The run ends when the checks have passed and the interval is narrow, or when
the evaluations are spent. The checks:

- **levels**: E[H^{(p)}] from simulations of length p and from the first p steps of longer ones
  agree;
- **mixing**: the two halves of the kept steps agree in the mean with each other and with the
  previous segment; the variance between chains agrees with the variance within chains; some step
  moves;
- **weights**: no draw has most of the weight, for kernels with importance weights;
- **law**: one exact Metropolis step from the simulated states changes no mean. Only this check
  detects a kernel with a wrong stationary distribution.

The checks detect errors that exceed their own noise; a stationary distribution with a small error
can pass. If a check is inconclusive, the simulations continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mlmcgrad._checks import positive
from mlmcgrad.diagnostics._checks import (
    Check,
    Mean,
    Segment,
    Setting,
    check_law,
    check_levels,
    check_mixing,
    check_weights,
    student_quantile,
    unbiased,
)
from mlmcgrad.diagnostics._report import Report, Table
from mlmcgrad.estimators import Average, Estimator
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Start
from mlmcgrad.measure import Measure

_CONFIDENCE = 0.95
Z = 1.959963984540054  # its quantile for a normal distribution
NOT_ZERO = 1e-3  # p-value below which a gradient is reported as not 0
_FEWEST = 128  # simulations, the minimum for a variance
_FOR_LEVELS, _FOR_WEIGHTS, _FOR_LAW = 0.1, 0.01, 0.1  # shares of evaluations
_MOST = 1e7  # evaluations of which checks get their shares: more do not make them better
_LEAST = 8  # minimum number of steps of each simulation
_DOUBT = 0.01  # p-value of a check below which simulations continue, if evaluations allow
_FIRST = 16  # steps of the first segment
TIMES = 32  # at which the states of a segment are recorded
_NUMBERS = 2**23  # in the states of a segment


@dataclass(frozen=True, eq=False)
class Certificate(Report):
    """The gradient at one θ with a confidence interval, and checks of the simulations.

    Attributes:
        estimate: the gradient with its noise.
        units: unit of each component, (d,).
        unit_name: name of the units.
        tolerance: maximum half-width of an interval, in units.
        checks: levels, mixing, weights, law and interval.
        evaluations: total number spent.
        length: length of the simulations; the first half of a chain is discarded.
        simulations: number of simulations.
    """

    estimate: Mean
    units: Tensor
    unit_name: str
    tolerance: float
    checks: tuple[Check, ...]
    evaluations: int
    length: int
    simulations: int

    @property
    def gradient(self) -> Tensor:
        """The gradient of all parameters, flattened, (d,)."""
        return self.estimate.value

    @property
    def se(self) -> Tensor:
        """Standard errors, (d,)."""
        return self.estimate.spread.square().sum(0).sqrt()

    @cached_property
    def covariance(self) -> Tensor:
        """Covariance matrix of the estimate, (d, d)."""
        return self.estimate.spread.T @ self.estimate.spread

    @property
    def half_width(self) -> float:
        """Half-width of the widest interval, in units: 95 % for all components jointly."""
        return float((self._quantile * self.se / self.units).max())

    @property
    def zero_within(self) -> float:
        """ε: every component is within ±ε units of 0, with 95 % confidence for all jointly."""
        return float(((self.gradient.abs() + self._quantile * self.se) / self.units).max())

    @property
    def p_value(self) -> float:
        """P-value of the hypothesis that the gradient is 0."""
        return self.p_value_of(torch.zeros_like(self.gradient))

    def p_value_of(self, gradient: Tensor) -> float:
        """Return the p-value of Hotelling's test that this is the gradient, (d,)."""
        return self.estimate.against(gradient.detach().flatten().double().cpu())

    @property
    def certified(self) -> bool:
        """Whether no check has failed."""
        return all(check.passed is not False for check in self.checks)

    @property
    def verdict(self) -> str:
        """What is certified, or which checks failed."""
        if not self.certified:
            failed = [check for check in self.checks if check.passed is False]
            return "NOT certified: " + " ".join(check.sentence for check in failed)
        p, within = self.p_value, f"±{self.zero_within:.2g} {self.unit_name}"
        if p >= NOT_ZERO:
            result = f"Certified: the gradient is 0 within {within} (95 %; p = {p:.2g})."
        else:
            norm, se = norm_of(self.gradient, self.estimate.spread)
            low, high = norm_interval(norm, se)
            result = (
                f"Certified: the norm of the gradient is {norm:.3g} (95 %: {low:.3g} to "
                f"{high:.3g}), not 0 (p = {p:.1g}); every component is within {within} of 0."
            )
        skipped = " ".join(check.sentence for check in self.checks if check.passed is None)
        return f"{result} {skipped}".rstrip()

    def _parts(self) -> list[str | Table]:
        title = (
            f"{self.simulations} simulations of length {self.length}, {self.evaluations:,} "
            f"evaluations; 95 % intervals of ±{self.half_width:.2g} {self.unit_name}"
        )
        rows = [(check.name, check.status, check.sentence) for check in self.checks]
        return [title, Table([("check", "", ""), *rows], left=3), self.verdict]

    @property
    def _quantile(self) -> float:
        outside = (1.0 - _CONFIDENCE) / len(self.gradient)
        return student_quantile(outside, self.estimate.freedom)


def norm_of(value: Tensor, spread: Tensor) -> tuple[float, float]:
    """Return the norm of a measured vector, corrected for its noise, and its standard error.

    ‖v‖² has the mean ‖E v‖² + tr C and the variance 4 E[v]ᵀ C E[v] + 2 tr C², C = spreadᵀ spread.
    """
    squared = float(value @ value - spread.square().sum())
    variance = 4.0 * float((spread @ value).square().sum())
    few = spread if spread.shape[0] > spread.shape[1] else spread.T  # tr(AᵀA)² = tr(AAᵀ)²
    variance += 2.0 * float((few.T @ few).square().sum())
    norm = math.sqrt(max(0.0, squared))
    return norm, math.sqrt(variance) / (2.0 * norm) if norm > 0.0 else variance**0.25


def norm_interval(norm: float, se: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of a norm by that of its square, which may be 0."""
    reach = Z * (2.0 * norm * se if norm > 0.0 else se * se)
    return math.sqrt(max(0.0, norm * norm - reach)), math.sqrt(norm * norm + reach)


@np.errstate(under="ignore")  # harmless, whatever np.seterr says
def certify(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    generator: torch.Generator,
    tolerance: float = 0.05,
    evaluations: float = 1e6,
    log_density: Callable[..., Tensor] | None = None,
    units: float | Tensor | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> Certificate:
    """Estimate the true gradient until its interval is narrow, and check the simulations.

    Args:
        gradient: with `parameters` given; its kernel and loss are used, its estimator is not.
        x0: where simulations start, (rows, *shape); each row starts several if there are few. The
            result is the mean over the rows. Widely spread starts of one target make the check of
            mixing more powerful.
        context: as for `gradient.backward`; rows with the same context have the same target.
        generator: source of all randomness.
        tolerance: maximum half-width of an interval, in units: 95 % for all components jointly.
        evaluations: approximate maximum to spend, 10^6 by default.
        log_density: log π up to a constant, `log_density(x, *context) -> (rows,)`, for the check of
            the law; by default that of the kernel. `FromStep` has none; without it the certificate
            says that the law was not checked.
        units: a number, or one per component, (d,), that intervals are relative to; by default the
            standard deviation of each component of H under the target, within rows.
        report: called with the spent share of the evaluations.

    Example:
        >>> from mlmcgrad import MLMC, MarkovGradient, problems
        >>> rng = torch.Generator().manual_seed(0)
        >>> chain = problems.finite_chain(states=6, seed=1)
        >>> gradient = MarkovGradient(
        ...     chain.kernel(), chain.loss, MLMC(2), parameters=chain.parameters
        ... )
        >>> result = certify(gradient, chain.start(1), generator=rng)
        >>> result.certified, result.p_value_of(chain.exact_gradient()[0]) > 1e-6
        (True, True)
    """
    positive(tolerance, "tolerance")
    positive(evaluations, "evaluations")
    setting = Setting(gradient, x0, context, generator, log_density)
    single = int(torch.bincount(setting.target).min()) < 2
    times = max(1 + single, math.ceil(_FEWEST / setting.rows))  # until there are enough simulations
    setting = setting.at(torch.arange(setting.rows).repeat(times))
    least = _LEAST * setting.rows * setting.step_cost
    if evaluations < least:
        raise ValueError(
            f"evaluations must be ≥ {least:,} for {setting.rows} simulations of {_LEAST} steps, "
            f"got {evaluations!r}; increase it, or use fewer rows"
        )
    given = None if units is None else _units(units, setting.dimension)
    simulations = Simulations(setting)
    checked = min(_MOST, evaluations)
    levels, spent = check_levels(setting, _FOR_LEVELS * checked)
    weights, more = check_weights(setting, _FOR_WEIGHTS * checked)
    spent += more
    available = evaluations * (1.0 - _FOR_LAW)
    for before, first, second in simulations.stages(available):
        result = Certificate(
            estimate=Mean.of((first.estimates + second.estimates) / 2.0, setting.target),
            units=simulations.deviation(second) if given is None else given,
            unit_name="standard deviations of H" if given is None else "units",
            tolerance=float(tolerance),
            checks=(),
            evaluations=0,
            length=simulations.length,
            simulations=setting.rows,
        )
        mixing = check_mixing(setting, simulations.moved, before, first, second)
        total = spent + simulations.evaluations
        report(min(1.0, total / evaluations))
        last = total + 2 * (first.evaluations + second.evaluations) > available
        if last or (mixing.p_value >= _DOUBT and result.half_width <= tolerance):
            law, more = check_law(setting, (first, second), _FOR_LAW * checked)
            spent, total = spent + more, total + more
            if last or (law.passed is not False and law.p_value >= _DOUBT):
                break
    checks = [levels, mixing, *([weights] if weights else []), law, _interval(result)]
    report(1.0)
    return replace(result, checks=tuple(checks), evaluations=total)


def _units(units: float | Tensor, dimension: int) -> Tensor:
    """Return one unit per component."""
    given = torch.as_tensor(units, dtype=torch.float64).detach().cpu().flatten()
    if len(given) not in (1, dimension) or not bool(((given > 0.0) & given.isfinite()).all()):
        raise ValueError(
            f"units must be a positive number, or one for each of the {dimension} components, got "
            f"{units!r}"
        )
    return given.expand(dimension)


def _interval(result: Certificate) -> Check:
    narrow, within = result.half_width <= result.tolerance, f"±{result.tolerance:g}"
    end = (
        f"within {within}."
        if narrow
        else f"wider than {within}. Increase evaluations or tolerance."
    )
    width = f"±{result.half_width:.2g} {result.unit_name}"
    return Check("interval", narrow, f"The interval is {width}, {end}")


class Simulations:
    """Independent simulations that can be continued, one per row of x0 and context."""

    def __init__(self, source: Setting) -> None:
        self._source, self.evaluations, self.length, self.moved = source, 0, 0, 0.0

    def segment(self, steps: int) -> Segment:
        """Make the next steps; their number is a power of two."""
        source, before, self.moved = self._source, self.evaluations, 0.0
        if source.independent:
            self.length, times = steps, 1
            estimator: Estimator = unbiased(source.gradient.kernel, steps)
        else:
            self.length, times = self.length + steps, min(TIMES, steps)
            estimator = Average(steps // times)
        total, states = torch.zeros(()), []
        for _ in range(times):
            lengths = estimator.draw(source.rows, None, source.generator)
            estimates, outcome, spent = self._source.estimate(lengths)
            self.moved, self.evaluations = self.moved + outcome.accepted, self.evaluations + spent
            if not source.independent:
                self._source = replace(self._source, x0=outcome.last)
            total = total + estimates / times
            states.append(outcome.last)
        most = max(1, _NUMBERS // states[0].numel())
        kept = torch.stack(states[:: math.ceil(times / most)])
        return Segment(total, kept, self.evaluations - before)

    def stages(self, evaluations: float) -> Iterator[tuple[Segment, Segment, Segment]]:
        """Yield consecutive segments, of which the last two have the same length.

        From one stage to the next it doubles, without end.
        """
        steps, cost = _FIRST, self._source.rows * self._source.step_cost
        while steps > 1 and 8 * steps * cost > evaluations:
            steps //= 2
        if not self._source.independent:
            self.segment(steps)
        before = self.segment(steps)
        while True:
            first, second = self.segment(steps), self.segment(steps)
            yield before, first, second
            before, steps = first.joined(second), 2 * steps

    def deviation(self, segment: Segment) -> Tensor:
        """Return the standard deviation of H at the last states, within targets, (d,).

        A constant component has the mean deviation of all.
        """
        points, rows = segment.states[-1], self._source.rows
        one = torch.ones(rows, dtype=torch.float64, device=points.device)
        last = Measure(points, torch.arange(rows, device=points.device), one)
        each = Mean.of(self._source.differentiate([last]).cpu(), self._source.target)
        deviation = (each.spread.square().sum(0) * rows).sqrt()
        usual = float(deviation.square().mean().sqrt()) or 1.0
        return torch.where(deviation > 1e-6 * usual, deviation, usual)
