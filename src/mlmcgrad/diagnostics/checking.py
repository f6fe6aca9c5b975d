"""The checks of a certificate: levels, mixing, weights, law.

A right kernel that has forgotten its start fails a test with a probability of at most 10^-5, all
together: a third of it each for levels, mixing and law, divided by the number of tests that each of
them makes. What has not been simulated long enough to be tested is not certified either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mlmcgrad.diagnostics.certificate import Check
from mlmcgrad.diagnostics.chains import weights
from mlmcgrad.diagnostics.invariance import increments, law_of, walks
from mlmcgrad.diagnostics.long_runs import Part, Simulations, unbiased
from mlmcgrad.diagnostics.means import Mean, excess, size_of, targets
from mlmcgrad.estimators import Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.hotelling import student_quantile
from mlmcgrad.kernels import Importance
from mlmcgrad.kernels.base import Context, Start
from mlmcgrad.kernels.proposing import ProposingKernel
from mlmcgrad.measure import Measure, concatenate
from mlmcgrad.plan import Plan

FALSE_ALARM = 1e-5
_EACH = FALSE_ALARM / 3.0
_PER_STATE = 5  # evaluations of a step: of the state, and of four moves
_RESOLVED = 0.25  # of the mean size of a change of log π: what must be seen
_STATES = 2**14  # from which a step is made
_LARGEST = 0.5  # share of the weight that one draw may have, mean over rows
_FEWEST, _DRAWS, _ROWS = 16, 1024, 64  # whose weights are looked at


@dataclass(frozen=True)
class Setting:
    """A gradient and where its simulations start, a row for each."""

    gradient: MarkovGradient
    x0: Start
    context: Context
    log_density: Callable[..., Tensor] | None
    generator: torch.Generator

    @cached_property
    def count(self) -> int:
        """Simulations."""
        return self.gradient.kernel.chains(self.x0, self.context)

    @cached_property
    def target(self) -> Tensor:
        """The number of the target of each, (count,)."""
        return targets(self.context, self.count)

    @property
    def step_cost(self) -> int:
        """Evaluations of a step of one simulation, at least about."""
        kernel = self.gradient.kernel
        return kernel.candidates if isinstance(kernel, ProposingKernel) else 1

    def start(self) -> Simulations:
        """All simulations at x0."""
        return Simulations(self.gradient, self.x0, self.context, self.generator)


def check_levels(setting: Setting, evaluations: float) -> tuple[Check, int]:
    """Simulations of length p against the beginnings of those of 2p, p = 1, 2, 4, ….

    Returns:
        The check, and what it has spent.
    """
    found, spent, length = [], 0, 1
    while True:
        means = []
        for plan in (
            Average(length).plan(setting.count, None, setting.generator),
            _beginning(length, setting.count),
        ):
            simulations = setting.start()
            means.append(Mean.of(simulations.run(plan)[0], setting.target))
            spent += simulations.evaluations
        found.append(means[0].minus(means[1]).significance())
        if 3 * spent > evaluations:  # the next length would double what is spent
            break
        length *= 2
    p = min(1.0, min(found) * len(found))
    if p >= _EACH:
        sentence = f"lengths 1 … {2 * length} fit together (p = {p:.2g})."
        return Check("levels", True, sentence, p), spent
    worst = 2 ** found.index(min(found))
    sentence = (
        f"Simulations of length {worst} do not have the mean of the first {worst} steps of longer "
        f"ones (p = {p:.1g}): the kernel's steps depend on how long it runs. Look at the kernel."
    )
    return Check("levels", False, sentence, p), spent


def _beginning(length: int, count: int) -> Plan:
    """H^{(length)} from simulations that are twice as long."""
    return Plan(
        levels=torch.zeros(count, dtype=torch.int64),
        lengths=torch.tensor([[length, 2 * length]]).expand(count, 2),
        weights=torch.tensor([[1.0 / length, 0.0]], dtype=torch.float64).expand(count, 2),
    )


def check_mixing(
    setting: Setting, simulations: Simulations, before: Part, first: Part, second: Part
) -> Check:
    """Parts of the same simulations, one after the other, against each other."""
    if simulations.moved == 0.0:
        sentence = "No step of any chain has moved it. Lower the step size, or look at x0."
        return Check("mixing", False, sentence, 0.0)
    a, b, c = (_columns(part, simulations.independent) for part in (before, first, second))
    size = size_of(torch.cat([b, c]))
    drift = min(
        Mean.of(b - c, setting.target, size).significance(),
        Mean.of(a - (b + c) / 2.0, setting.target, size).significance(),
    )
    ratio, same = excess(b, c, setting.target)
    p = min(1.0, 4.0 * drift, 2.0 * same)
    if p >= _EACH:
        sentence = f"no drift, and chains that are alike (p = {p:.2g})."
        return Check("mixing", True, sentence, p)
    if 4.0 * drift < _EACH:
        sentence = f"Means still drift (p = {4.0 * drift:.1g}): the chains are too short. "
    else:
        sentence = (
            f"Chains differ more from each other than from themselves, {ratio:.3g} times in "
            "variance: they have not come together. "
        )
    remedy = "Give a larger budget, a start nearer to the law, or a kernel that mixes faster."
    return Check("mixing", False, sentence + remedy, p)


def _columns(part: Part, independent: bool) -> Tensor:
    """What is compared: estimates, and functions of the states of chains."""
    return part.estimates if independent else torch.cat([part.estimates, part.features()], 1)


@torch.no_grad()
def check_weights(setting: Setting, evaluations: float) -> tuple[Check | None, int]:
    """Whether weights are alive, for kernels that weigh draws; and what that has spent."""
    kernel = setting.gradient.kernel
    if not isinstance(kernel, ProposingKernel):
        return None, 0
    rows = torch.arange(min(_ROWS, setting.count))
    draws = max(_FEWEST, min(_DRAWS, int(evaluations / len(rows))))
    owner = rows.repeat_interleave(2 ** (draws.bit_length() - 1))
    _, log_w = kernel.fresh(setting.context, owner, setting.generator)
    found = weights(torch.cat(log_w).cpu().reshape(len(rows), -1).nan_to_num(nan=-torch.inf))
    if found.largest <= _LARGEST:
        sentence = (
            f"{found.draws} draws are worth {found.effective:.3g}, the largest weight is "
            f"{found.largest:.1%} of all."
        )
        return Check("weights", True, sentence), len(owner)
    sentence = (
        f"One of {found.draws} draws has {found.largest:.0%} of the weight: what the others would "
        "say is not known. Use a proposal that covers the target."
    )
    return Check("weights", False, sentence), len(owner)


def check_law(setting: Setting, parts: tuple[Part, Part], evaluations: float) -> tuple[Check, int]:
    """One exact Metropolis step from where the simulations are; and what that has spent."""
    law = law_of(setting.gradient.kernel, setting.log_density)
    states = torch.cat([part.states for part in parts])
    if law is None or (law.propose is None and not walks(states)):
        sentence = "The law itself was not checked: no log_density says what it should be."
        return Check("law", None, sentence), 0
    if isinstance(setting.gradient.kernel, Importance):
        measure, spent = _weighted(setting, evaluations)
    else:
        measure, spent = _visited(states, min(_STATES, evaluations / _PER_STATE)), 0
    moved, size, more = increments(law, measure, setting.context, setting.count, setting.generator)
    found, scale = Mean.of(moved, setting.target), size.mean(0)
    spent += more
    p = found.significance()
    if p < _EACH:
        sentence = (
            f"An exact Metropolis step from {len(measure):,} states changes their mean "
            f"(p = {p:.1g}): their law is not that of the density. Look at the kernel, and at the "
            "start if it is far off."
        )
        return Check("law", False, sentence, p), spent
    # Every move counts for log π, and many of them are needed for each of many coordinates.
    limit = student_quantile(_EACH / len(scale), found.freedom) * found.variance[-1].sqrt()
    seen = float(limit / scale[-1]) if scale[-1] > 0.0 else 0.0
    if seen > _RESOLVED:
        sentence = (
            f"Changes of log π that are off by {seen:.0%} could not be seen, and should at "
            f"{_RESOLVED:.0%}. Give a larger budget."
        )
        return Check("law", False, sentence, p), spent
    sentence = (
        f"an exact Metropolis step from {len(measure):,} states changes no mean (p = {p:.2g}); a "
        f"change of log π that is off by {seen:.0%} would be seen."
    )
    return Check("law", True, sentence, p), spent


def _visited(states: Tensor, most: float) -> Measure:
    """States of chains, each with the same weight."""
    times, count = states.shape[:2]
    kept = states[:: math.ceil(times / max(1, int(most) // count))]
    owner = torch.arange(count, device=states.device).repeat(len(kept))
    share = torch.full((len(owner),), 1.0 / len(kept), dtype=torch.float64, device=states.device)
    return Measure(kept.flatten(0, 1), owner, share)


def _weighted(setting: Setting, evaluations: float) -> tuple[Measure, int]:
    """Draws with the coefficients that the unbiased estimate gives them."""
    kernel, base = setting.gradient.kernel, 1
    cost = (
        (1.0 + _PER_STATE)
        * setting.count
        * setting.step_cost
        * unbiased(kernel, 1).expected_length()
    )
    while 2.0 * base * cost <= evaluations:
        base *= 2
    plan = unbiased(kernel, base).plan(setting.count, None, setting.generator)
    simulation = setting.gradient.simulate(setting.x0, setting.context, plan, setting.generator)
    measure = concatenate(list(simulation))
    return measure, simulation.outcome.evaluations
