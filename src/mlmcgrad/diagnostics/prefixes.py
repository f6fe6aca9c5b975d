"""Simulations with H^{(1)}, H^{(2)}, H^{(4)}, … of each, for a pilot.

A chain is simulated in segments of doubling length, each from where the one before ended, and the
averages are put together; importance sampling is one set of draws, weighed in groups of each size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.diagnostics.per_chain import chain_gradients, required_parameters, weighted_gradients
from mlmcgrad.diagnostics.sketch import Sketch
from mlmcgrad.estimators import Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.kernels import Importance
from mlmcgrad.kernels.base import Context, Start, take
from mlmcgrad.kernels.groups import Blocks, block_weights, shares
from mlmcgrad.kernels.proposing import usable
from mlmcgrad.measure import Measure
from mlmcgrad.plan import Plan

_NUMBERS = 2**26  # in memory: half a gigabyte


@dataclass(frozen=True)
class Group:
    """Simulations of one length 2^j."""

    estimates: Tensor  # (simulations, j + 1, d) float64: H^{(1)}, H^{(2)}, …, H^{(2^j)} of each
    evaluations: float  # of one simulation
    moved: float  # share of the steps that changed the state
    largest: float = 0.0  # share of the largest weight, for importance sampling


@dataclass(frozen=True)
class Source:
    """Draws simulations, from the rows of x0 and context in turn."""

    gradient: MarkovGradient
    x0: Start
    context: Context
    generator: torch.Generator

    @property
    def rows(self) -> int:
        """Of x0 and the context."""
        return self.gradient.kernel.chains(self.x0, self.context)

    def step_cost(self) -> float:
        """Evaluations of a step of one simulation, at least 1."""
        if isinstance(self.gradient.kernel, Importance):
            return float(self.gradient.kernel.candidates)
        return max(1.0, self.draw(0, 1).evaluations)

    def draw(self, level: int, count: int) -> Group:
        """Simulations of the length 2^level."""
        rows = self.rows
        each_row = in_turn(level, count, rows)
        parameters = sum(p.numel() for p in required_parameters(self.gradient))
        sketch = Sketch(parameters)
        at_once = max(1, _NUMBERS // (parameters * (level + 2)))
        each, spent, moved, largest = [], 0, 0.0, 0.0
        for begin in range(0, count, at_once):
            index = each_row[begin : begin + at_once]
            (x0,) = take((self.x0,), index)
            one = _importance if isinstance(self.gradient.kernel, Importance) else _chain
            found, evaluations, accepted, weight = one(
                self.gradient, x0, take(self.context, index), level, len(index), self.generator
            )
            each.append(sketch(found))
            spent, moved = spent + evaluations, moved + accepted
            largest += weight
        steps = count * 2**level
        return Group(torch.cat(each), max(spent, steps) / count, moved / steps, largest / count)


def in_turn(level: int, count: int, rows: int) -> Tensor:
    """Rows of simulations of the length 2^level, (count,): two of a row after another.

    Other rows for other lengths, where there are more rows than simulations.
    """
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(level))
    return order[torch.arange(count) // 2 % rows]


def _chain(
    gradient: MarkovGradient,
    x0: Start,
    context: Context,
    level: int,
    count: int,
    generator: torch.Generator,
) -> tuple[Tensor, int, float, float]:
    """(count, level + 1, d) estimates of chains, evaluations, steps that moved, and 0."""
    averages: list[Tensor] = []
    evaluations, moved = 0, 0.0
    for end in range(level + 1):
        steps = 2 ** max(0, end - 1)  # 1, then 1, 2, 4, … more
        plan = Average(steps).plan(count, None, generator)
        each, outcome = chain_gradients(gradient, x0, *context, plan=plan, generator=generator)
        # Halves of equal length: the average of both is that of the whole.
        averages.append((averages[-1] + each) / 2.0 if averages else each)
        x0, evaluations = outcome.last, evaluations + outcome.evaluations
        moved += outcome.accepted
    return torch.stack(averages, 1).cpu(), evaluations, moved, 0.0


def _importance(
    gradient: MarkovGradient,
    x0: Start,
    context: Context,
    level: int,
    count: int,
    generator: torch.Generator,
) -> tuple[Tensor, int, float, float]:
    """The same for importance sampling: all group sizes from one set of draws.

    In place of the 0 the sum of the largest weights of the simulations.
    """
    kernel, blocks = gradient.kernel, Blocks.of(np.full(count, 2**level))
    assert isinstance(kernel, Importance)
    owner = torch.arange(count).repeat_interleave(2**level * kernel.candidates)
    with torch.no_grad():
        states, log_weights = kernel.fresh(context, owner, generator)
    log_w, _ = usable(torch.cat(log_weights).reshape(-1, kernel.candidates))
    log_sum, share = shares(log_w)
    z, coefficients = torch.cat(states), []
    for of in range(level + 1):
        plan = Plan(
            levels=torch.zeros(count, dtype=torch.int64),
            lengths=torch.tensor([[2**of, 2**level]]).expand(count, 2),
            weights=torch.tensor([[2.0**-of, 0.0]], dtype=torch.float64).expand(count, 2),
        )
        weight, _ = block_weights(log_sum, blocks, plan)
        coefficients.append(torch.from_numpy((weight[:, None] * share).ravel()))
    found = [
        weighted_gradients(gradient, Measure(z, owner, c), context, count) for c in coefficients
    ]
    largest = float(coefficients[-1].reshape(count, -1).max(1).values.sum())
    return torch.stack(found, 1).cpu(), len(z), float(count * 2**level), largest
