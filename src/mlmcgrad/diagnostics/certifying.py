"""Certify the gradient at a θ: an estimate without a bias that matters, and checks of it.

Independent chains, from the rows of x0 in turn, are made longer by a factor of two at a time. The
first half of each is not used; the noise is that between chains of the same target, so it needs no
autocorrelation time. Importance sampling is the unbiased sum form. It ends when the checks have
passed and the interval is narrow, or with the budget. The checks (`checking.py`):

- **levels**: E[H^{(p)}] from simulations of length p and from the beginnings of those of 2p agree;
- **mixing**: neither half of what is kept differs from the other, nor from what came before, in the
  mean; chains are not more different from each other than from themselves; some step moves;
- **weights**: no draw has most of the weight, for kernels that weigh;
- **law**: one exact Metropolis step from where the simulations are changes no mean
  (`invariance.py`): the one check that sees a kernel with a wrong stationary law.

They see what is larger than their own noise: a law that is off by little can pass. Where a check
is in doubt, simulations go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mlmcgrad.diagnostics.certificate import Certificate, Check, bias_of
from mlmcgrad.diagnostics.checking import (
    Setting,
    check_law,
    check_levels,
    check_mixing,
    check_weights,
)
from mlmcgrad.diagnostics.choice import describe
from mlmcgrad.diagnostics.long_runs import Part, Simulations
from mlmcgrad.diagnostics.means import Mean, targets
from mlmcgrad.diagnostics.per_chain import required_parameters
from mlmcgrad.estimators import Estimator
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels.base import Context, Start, check_call, take
from mlmcgrad.ranges import positive

_FEWEST = 128  # simulations: fewer say little about a variance
_FIRST = 16  # steps of a part, to begin with
_FOR_LEVELS, _FOR_WEIGHTS, _FOR_LAW, _FOR_METHOD = 0.1, 0.01, 0.1, 0.2  # shares of the budget
_LEAST = 8  # steps of each simulation that a budget must allow
_DOUBT = 0.01  # p-value of a check below which simulations go on, if the budget allows it
_AT_ONCE = 4096  # simulations of a method


def certify(
    gradient: MarkovGradient,
    x0: Start,
    *context: object,
    generator: torch.Generator,
    tolerance: float = 0.05,
    budget: float = 1e6,
    against: Estimator | None = None,
    log_density: Callable[..., Tensor] | None = None,
    units: float | Tensor | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> Certificate:
    """Estimate the true gradient until its interval is narrow, and check the simulations.

    Args:
        gradient: with `parameters` given; its kernel and loss are used, its estimator is not.
        x0: where simulations start, (rows, *shape), several from each row if there are few. What
            is estimated is the mean over the rows. Starts that are far apart, of one target, let
            the check of mixing see more.
        context: as for `gradient.backward`; rows with the same context have the same target.
        generator: source of all randomness.
        tolerance: half the width, in units, that the widest interval may have: 95 % for all
            components together.
        budget: evaluations that may be spent, all together; of importance sampling, whose
            simulations have random lengths, in the mean.
        against: a method whose bias is measured, with the same kernel: `Average(1)` with `ISIR` or
            `Importance` is IWAE, with `Gibbs` contrastive divergence.
        log_density: log π up to a constant, `log_density(x, *context) -> (rows,)`, for the check of
            the law; by default what the kernel itself is given. A kernel of a user's own step has
            none, and without it the certificate says that the law was not checked.
        units: a number, or one for each component, (d,), by which the gradient is measured; by
            default the standard deviation of each component of H under the law, within rows.
        report: called with the share of the budget that is spent.

    Example:
        >>> from mlmcgrad import MLMC, MarkovGradient, problems
        >>> rng = torch.Generator().manual_seed(0)
        >>> chain = problems.finite_chain(states=6, seed=1)
        >>> gradient = MarkovGradient(
        ...     chain.kernel(), chain.loss, MLMC(2), parameters=chain.parameters
        ... )
        >>> found = certify(gradient, chain.start(1), generator=rng)
        >>> found.certified, found.p_value_of(chain.exact_gradient()[0]) > 1e-6
        (True, True)
    """
    positive(tolerance, "tolerance")
    positive(budget, "budget")
    setting = _setting(gradient, x0, context, log_density, generator)
    least = _LEAST * setting.count * setting.step_cost
    if budget < least:
        raise ValueError(
            f"budget must be ≥ {least:,} for {setting.count} simulations of {_LEAST} steps, got "
            f"{budget!r}; give a larger one, or fewer rows"
        )
    given = _units(units, gradient)
    levels, spent = check_levels(setting, _FOR_LEVELS * budget)
    alive, more = check_weights(setting, _FOR_WEIGHTS * budget)
    spent += more
    available = budget * (1.0 - _FOR_LAW - (_FOR_METHOD if against is not None else 0.0))
    for stage in _stages(setting, available):
        found = _measured(setting, stage, given, tolerance)
        mixing = check_mixing(setting, stage.simulations, stage.before, stage.first, stage.second)
        total = spent + stage.simulations.evaluations
        report(min(1.0, total / budget))
        last = total + 2 * stage.evaluations > available
        if last or (mixing.p_value >= _DOUBT and found.half_width <= tolerance):
            law, more = check_law(setting, (stage.first, stage.second), _FOR_LAW * budget)
            spent, total = spent + more, total + more
            if last or (law.passed is not False and law.p_value >= _DOUBT):
                break
    checks = [levels, mixing, *([alive] if alive else []), law, _interval(found)]
    found = replace(found, checks=tuple(checks), evaluations=total)
    if against is not None:
        mean, more = _method(setting, against, _FOR_METHOD * budget)
        bias = bias_of(describe(against), mean, found)
        found = replace(found, bias=bias, evaluations=total + more)
    report(1.0)
    return found


def _setting(
    gradient: MarkovGradient,
    x0: Start,
    context: Context,
    log_density: Callable[..., Tensor] | None,
    generator: torch.Generator,
) -> Setting:
    """As many simulations of each row as are needed."""
    required_parameters(gradient)
    rows = check_call(gradient.kernel, x0, context, generator)
    if x0 is not None and not isinstance(x0, Tensor):
        raise TypeError(
            f"x0 must be a tensor of states, or None for a kernel that draws its start, got "
            f"{type(x0).__name__}: several simulations start from each row"
        )
    single = int(torch.bincount(targets(context, rows)).min()) < 2
    index = torch.arange(rows).repeat(max(1 + single, math.ceil(_FEWEST / rows)))
    (start,) = take((x0,), index)
    return Setting(gradient, start, take(context, index), log_density, generator)


@dataclass(frozen=True)
class _Stage:
    """Simulations of some length: the halves of what is kept, and what came before."""

    simulations: Simulations
    before: Part
    first: Part
    second: Part
    length: int
    evaluations: int  # of the halves


def _stages(setting: Setting, budget: float) -> Iterator[_Stage]:
    """Simulations that are twice as long each time, without end."""
    simulations, steps = setting.start(), _FIRST
    while steps > 1 and 8 * steps * setting.count * setting.step_cost > budget:
        steps //= 2
    if simulations.independent:
        before, length = simulations.part(steps), 0
    else:
        simulations.part(steps)
        before, length = simulations.part(steps), 2 * steps
    while True:
        spent = simulations.evaluations
        first, second = simulations.part(steps), simulations.part(steps)
        length = steps if simulations.independent else length + 2 * steps
        evaluations = simulations.evaluations - spent
        yield _Stage(simulations, before, first, second, length, evaluations)
        before, steps = first.joined(second), 2 * steps


def _measured(
    setting: Setting, stage: _Stage, units: Tensor | None, tolerance: float
) -> Certificate:
    """The gradient, before it is known what the checks say."""
    estimates = (stage.first.estimates + stage.second.estimates) / 2.0
    name = "units"
    if units is None:
        name = "standard deviations of H"
        units = stage.simulations.deviation(stage.second, setting.target)
        # A component that never varies is measured by the others.
        usual = float(units.square().mean().sqrt()) or 1.0
        units = torch.where(units > 1e-6 * usual, units, usual)
    return Certificate(
        estimate=Mean.of(estimates, setting.target),
        units=units,
        unit_name=name,
        tolerance=float(tolerance),
        checks=(),
        evaluations=0,
        length=stage.length,
        simulations=setting.count,
    )


def _units(units: float | Tensor | None, gradient: MarkovGradient) -> Tensor | None:
    """A unit for each component."""
    if units is None:
        return None
    d = sum(p.numel() for p in required_parameters(gradient))
    given = torch.as_tensor(units, dtype=torch.float64).detach().cpu().flatten()
    if len(given) not in (1, d) or not bool(((given > 0.0) & given.isfinite()).all()):
        raise ValueError(
            f"units must be a positive number, or one for each of the {d} components, got {units!r}"
        )
    return given.expand(d)


def _interval(found: Certificate) -> Check:
    width = f"±{found.half_width:.2g} {found.unit_name}"
    if found.half_width <= found.tolerance:
        return Check("interval", True, f"{width}, at most ±{found.tolerance:g}.")
    sentence = (
        f"The interval is {width}, wider than ±{found.tolerance:g}. Give a larger budget, or a "
        "larger tolerance."
    )
    return Check("interval", False, sentence)


def _method(setting: Setting, against: Estimator, evaluations: float) -> tuple[Mean, int]:
    """The mean of a method, as exactly as the evaluations allow, and what was spent."""
    index = torch.arange(setting.count).repeat(max(1, _AT_ONCE // setting.count))
    (x0,) = take((setting.x0,), index)
    many = replace(setting, x0=x0, context=take(setting.context, index))
    each: list[Tensor] = []
    spent = latest = 0
    while not each or spent + latest <= evaluations:
        simulations = many.start()
        each.append(simulations.run(against.plan(many.count, None, setting.generator))[0])
        latest = simulations.evaluations
        spent += latest
    return Mean.of(torch.cat(each), many.target.repeat(len(each))), spent
