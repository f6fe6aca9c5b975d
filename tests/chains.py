"""Small pieces that several tests build chains from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlmcgrad import kernels, problems
from mlmcgrad.kernels import Outcome
from mlmcgrad.kernels.base import Context, Start
from mlmcgrad.lengths import Lengths
from mlmcgrad.measure import Measure, concatenate, drop


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(
    kernel: kernels.Kernel,
    x0: Start,
    plan: Lengths,
    context: Context = (),
    seed: int | torch.Generator = 0,
) -> tuple[Measure, Outcome]:
    """Run a kernel and collect its measure without points of weight 0."""
    generator = seed if isinstance(seed, torch.Generator) else rng(seed)
    assert kernel.chains(x0, context) == len(plan.levels)
    simulation = kernels.Simulation(kernel.run(x0, context, plan, generator))
    return drop(concatenate([piece for piece in simulation if len(piece)])), simulation.outcome


def random_matrix(states: int, seed: int) -> Tensor:
    """A transition matrix with uneven positive entries."""
    raw = torch.rand(states, states, dtype=torch.float64, generator=rng(seed)) ** 3 + 0.02
    return raw / raw.sum(1, keepdim=True)


def average_law(matrix: Tensor, start: Tensor, length: int) -> Tensor:
    """Mean over i = 1 … length of start·P^i: the exact law behind a chain average."""
    law, total = start, torch.zeros_like(start)
    for _ in range(length):
        law = law @ matrix
        total = total + law
    return total / length


def unit(states: int, at: int = 0) -> Tensor:
    """The point mass at a state."""
    return torch.eye(states, dtype=torch.float64)[at]


def weight_spread(model: problems.LinearGaussian, draws: int, generator: torch.Generator) -> float:
    """Standard deviation of the log weights under the proposal, mean over the data."""
    y = model.data.repeat_interleave(draws, 0)
    with torch.no_grad():
        log_w = model.log_weight(model.propose(len(y), y, generator), y)
    return float(log_w.reshape(-1, draws).std(1).mean())


class Counter:
    """Wraps a function and remembers the first argument of every call."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls: list[Tensor] = []

    def __call__(self, x: Tensor, *context: Any, **options: Any) -> Tensor:
        self.calls.append(x.detach().clone())
        result: Tensor = self.function(x, *context, **options)
        return result

    @property
    def rows(self) -> int:
        return sum(len(c) for c in self.calls)
