"""The average over R against sums that are written out."""

from __future__ import annotations

import pytest
import torch

from mlmcgrad.experiments.rates.average import WeightedAverage
from mlmcgrad.experiments.rates.run import make_optimizer, weight
from mlmcgrad.experiments.rates.settings import OPTIONS, Name
from mlmcgrad.problems import sticky
from tests.chains import rng


def _paper_weight(name: Name, n: int) -> float:
    """w_n = γ_{n+1} λ_{n+1}, from the paper's formulas with the numbers of the run."""
    gamma = 0.1 * (n + 1) ** -0.5
    if name == "sgd":
        return gamma
    if name == "adagrad":  # ε = 1, M = 2
        return gamma * (1.0 if n == 0 else (1.0 + 2.0**2) ** -0.5)
    return gamma * (0.0 if n == 0 else (1.0 + 4.0 * (1.0 - 0.999**n)) ** -0.5)  # δ = 1, ε = 4


@pytest.mark.parametrize("name", OPTIONS)
def test_average_over_r_against_a_slow_reference(name: Name) -> None:
    replicas, iterations = 3, 600  # more than two blocks
    problem = sticky(replicas, seed=1)
    path = torch.rand(iterations + 1, replicas, 2, dtype=torch.float64, generator=rng()) * 6.0
    optimizer = make_optimizer(name, problem.theta)
    weights = torch.tensor([weight(optimizer, n) for n in range(iterations + 1)])
    grid = [10, 255, 256, 257, 600]
    average = WeightedAverage(problem, weights.double(), grid)
    for theta in path:
        average.add(theta)
    for row, N in zip(average.values(), grid, strict=True):
        for r in range(replicas):
            top = bottom = 0.0
            for n in range(N + 1):
                square = float(problem.gradient(path[n, r : r + 1]).square().sum())
                top += _paper_weight(name, n) * square
                bottom += _paper_weight(name, n)
            assert float(row[r]) == pytest.approx(top / bottom, rel=1e-6)
