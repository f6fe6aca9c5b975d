"""Simulations that get longer and longer: the estimates of their parts, and where they were.

Chains go on from where they are. Importance sampling has nothing to go on from: each part is a set
of new simulations, of the unbiased sum form with the length as its base, so that the levels above
it, which are rare and heavy, have little left to correct.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mlmcgrad.diagnostics.means import Mean, projection
from mlmcgrad.diagnostics.per_chain import chain_gradients, weighted_gradients
from mlmcgrad.estimators import Average, MLMCSum
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Importance
from mlmcgrad.kernels.base import Context, Start
from mlmcgrad.kernels.proposing import MOST_CANDIDATES
from mlmcgrad.measure import Measure
from mlmcgrad.plan import Plan

TIMES = 32  # at which states of a part are looked at
_NUMBERS = 2**23  # in the states of a part
DIRECTIONS = 32  # of a state that are looked at
_CONTINUATION = 2**-1.5


@dataclass(frozen=True)
class Part:
    """Some steps of all simulations."""

    estimates: Tensor  # (n, d) float64
    states: Tensor  # (times, n, *shape)

    def joined(self, other: Part) -> Part:
        """With another part as long."""
        states = torch.cat([self.states, other.states])
        return Part((self.estimates + other.estimates) / 2.0, states)

    def features(self) -> Tensor:
        """Means over time of the coordinates of the state and of their squares, (n, k)."""
        return features(self.states.flatten(0, 1)).reshape(*self.states.shape[:2], -1).mean(0)


class Simulations:
    """Independent simulations, one for each row of x0 and context."""

    def __init__(
        self, gradient: MarkovGradient, x0: Start, context: Context, generator: torch.Generator
    ) -> None:
        self.gradient, self.context, self.generator = gradient, context, generator
        self.count = gradient.kernel.chains(x0, context)
        self.independent = isinstance(gradient.kernel, Importance)
        self._x = x0
        self.evaluations, self.moved, self.steps = 0, 0.0, 0

    def run(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """Estimates and last states of a plan, from where the simulations are."""
        estimates, outcome = chain_gradients(
            self.gradient, self._x, *self.context, plan=plan, generator=self.generator
        )
        if not bool(estimates.isfinite().all()):
            raise FloatingPointError(
                "the loss has a gradient that is NaN or infinite at a state of the simulations; "
                "a gradient like that cannot be certified, look at the loss there"
            )
        steps = int(plan.longest.sum())
        self.steps, self.moved = self.steps + steps, self.moved + outcome.accepted
        self.evaluations += max(outcome.evaluations, steps)  # a matrix is no model: steps count
        if not self.independent:
            self._x = outcome.last
        return estimates.cpu(), outcome.last

    def part(self, steps: int) -> Part:
        """The next steps; a power of two."""
        self.moved, self.steps = 0.0, 0
        if self.independent:
            plan = unbiased(self.gradient.kernel, steps).plan(self.count, None, self.generator)
            estimates, last = self.run(plan)
            return Part(estimates, last[None])
        total, states = torch.zeros(()), []
        times = min(TIMES, steps)
        for _ in range(times):
            estimates, last = self.run(
                Average(steps // times).plan(self.count, None, self.generator)
            )
            total = total + estimates / times
            states.append(last)
        most = max(1, _NUMBERS // states[0].numel())
        return Part(total, torch.stack(states[:: math.ceil(times / most)]))

    def deviation(self, part: Part, target: Tensor) -> Tensor:
        """Standard deviation of H at the last states of a part, within targets, (d,)."""
        points = part.states[-1]
        one = torch.ones(self.count, dtype=torch.float64, device=points.device)
        owner = torch.arange(self.count, device=points.device)
        each = weighted_gradients(
            self.gradient, Measure(points, owner, one), self.context, self.count
        )
        return (Mean.of(each.cpu(), target).spread.square().sum(0) * self.count).sqrt()


def unbiased(kernel: object, base: int) -> MLMCSum:
    """The sum form without a bias, for importance sampling."""
    assert isinstance(kernel, Importance)
    most = max(base, min(2**20, MOST_CANDIDATES // kernel.candidates))
    return MLMCSum(math.inf, _CONTINUATION, base=base, max_transitions=most)


def features(x: Tensor, centre: Tensor | None = None) -> Tensor:
    """Coordinates of states and their squares; of many coordinates, fixed projections.

    Args:
        x: (rows, *shape).
        centre: of the squares, (k,).
    """
    flat = x.detach().reshape(len(x), -1).double().cpu()
    if flat.shape[1] > DIRECTIONS:
        flat = flat @ projection(flat.shape[1], DIRECTIONS)
    return torch.cat([flat, (flat if centre is None else flat - centre).square()], 1)
