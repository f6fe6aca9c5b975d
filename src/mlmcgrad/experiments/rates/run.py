"""One training run of `rates`: many replicas at once, and E‖∇V(θ_R)‖² for many N at once.

Given the path θ_0 … θ_N the random iterate has P(R = n) ∝ w_n = γ_{n+1} λ_{n+1}, so

    E[‖∇V(θ_R)‖² | path] = Σ_{n≤N} w_n ‖∇V(θ_n)‖² / Σ_{n≤N} w_n

exactly, for every N of a grid from the same path: nothing is drawn for R, and ∇V is exact.

The replicas are the rows of one parameter. Each has its own chain, its own level K and its own
uniforms, and the optimizers work coordinate by coordinate, so the rows are independent runs.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from mlmcgrad import optim
from mlmcgrad.estimators import MLMC
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.problems import Sticky, sticky
from mlmcgrad.runs.pool import Report
from mlmcgrad.schedules import Schedule, power

Name: TypeAlias = Literal["sgd", "adagrad", "amsgrad"]

OPTIMIZERS: tuple[Name, ...] = ("sgd", "adagrad", "amsgrad")
ALPHAS = (0.0, 0.25, 0.5, 1.0)

STAY = 0.7  # the chain forgets in about 3 steps: an average of two leaves a bias that can be seen
START = 2  # the state from which that bias leaves the largest gradient of V
TRUNCATION = 2.0  # T_1; also T_n for every n when α = 0
# Chosen after trials: with c = 0.2 and N = 20 000 the runs with α = 1 had slopes of -0.26 to -0.28
# for a predicted -0.27, equal within the error; smaller steps have less noise and fall faster.
GAMMA = power(0.1, -0.5)
# ε_1 of the order 1/M, or the first iterate would carry most of the weight of R.
ADAGRAD: dict[str, Any] = {"epsilon": 1.0, "clip": 2.0}
AMSGRAD: dict[str, Any] = {"rho1": 0.9, "rho2": 0.999, "delta": 1.0, "clip": 2.0}

_BLOCK = 256  # iterates whose gradients are computed together
_REPORTS = 100
_STREAMS = 1000


def train(
    report: Report,
    *,
    optimizer: Name,
    alpha: float,
    iterations: int,
    replicas: int,
    seed: int,
    stream: int,
) -> dict[str, Any]:
    """Train all replicas for one optimizer and one exponent of T_n.

    Args:
        report: told the share of the work done.
        optimizer: which one.
        alpha: T_n = 2 n^α.
        iterations: the largest N.
        replicas: independent runs.
        seed: of the replicas' θ_0.
        stream: tells the chains of runs with the same seed apart.

    Returns:
        `N`: the grid; `values`: E[‖∇V(θ_R)‖² | path] of each replica, one list for each N;
        `weights`: Σ_{n≤N} w_n for each N; `transitions`: chain steps of one replica; `level`:
        ‖∇V‖² of each replica where descent on the biased objective V_t of a constant T ends,
        None for a growing T.
    """
    problem = problem_for(replicas, torch.Generator().manual_seed(_STREAMS * seed))
    generator = torch.Generator().manual_seed(_STREAMS * seed + 1 + stream)
    chosen = make_optimizer(optimizer, problem.theta)
    truncation = power(TRUNCATION, alpha)
    gradient = make_gradient(problem, truncation)
    weights = torch.tensor([weight(chosen, n) for n in range(iterations + 1)], dtype=torch.float64)
    average = WeightedAverage(problem, weights, log_grid(iterations))
    start, transitions = problem.start(START), 0
    for n in range(1, iterations + 1):
        average.add(problem.theta)
        problem.theta.grad = None
        if isinstance(chosen, torch.optim.SGD):
            chosen.param_groups[0]["lr"] = GAMMA(n)
        transitions += gradient.backward(start, problem.theta, n=n, generator=generator).transitions
        chosen.step()
        if n % max(1, iterations // _REPORTS) == 0:
            report(n / iterations)
    average.add(problem.theta)
    values = average.values()
    level = None
    if alpha == 0.0:
        ends = problem.biased_minima(problem.theta.detach(), int(TRUNCATION), START)
        level = problem.gradient(ends).square().sum(-1).tolist()
    return {
        "N": average.grid,
        "values": values.tolist(),
        "weights": weights.cumsum(0)[average.grid].tolist(),
        "transitions": transitions / replicas,
        "level": level,
    }


class WeightedAverage:
    """Σ_{n≤N} w_n ‖∇V(θ_n)‖² / Σ_{n≤N} w_n for every N of a grid, of each replica.

    Args:
        problem: gives ∇V.
        weights: w_0 … w_N.
        grid: increasing values of N.
    """

    def __init__(self, problem: Sticky, weights: Tensor, grid: list[int]) -> None:
        self.problem, self.weights, self.grid = problem, weights, grid
        self._sums = weights.cumsum(0)
        self._waiting: list[Tensor] = []
        self._n = 0  # θ_0 … θ_{n−1} are in the total
        self._total = torch.zeros(len(problem.theta), dtype=torch.float64)
        self._found: list[Tensor] = []

    def add(self, theta: Tensor) -> None:
        """The next iterate, (replicas, 2)."""
        self._waiting.append(theta.detach().clone())
        if len(self._waiting) == _BLOCK:
            self._flush()

    def values(self) -> Tensor:
        """The averages, (grid, replicas)."""
        self._flush()
        return torch.stack(self._found)

    def _flush(self) -> None:
        count = len(self._waiting)
        if not count:
            return
        theta = torch.stack(self._waiting)  # (iterates, replicas, 2)
        squares = self.problem.gradient(theta.flatten(0, 1)).square().sum(-1).view(count, -1)
        sums = (self.weights[self._n : self._n + count, None] * squares).cumsum(0) + self._total
        for N in self.grid:
            if self._n <= N < self._n + count:
                self._found.append(sums[N - self._n] / self._sums[N])
        self._total, self._waiting, self._n = sums[-1], [], self._n + count


def problem_for(replicas: int, generator: torch.Generator) -> Sticky:
    """The problem, one θ_0 for each replica, uniform on the torus."""
    problem = sticky(replicas, stay=STAY)
    start = torch.rand(replicas, 2, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        problem.theta.copy_(start * (2.0 * math.pi))
    return problem


def make_gradient(problem: Sticky, truncation: Schedule) -> MarkovGradient:
    """Gives every replica, a row of θ, the estimate of its own chain."""
    replicas = len(problem.theta)
    return MarkovGradient(
        problem.kernel(),
        lambda x, theta: problem.loss(x, theta) * replicas,  # undo the mean over chains
        MLMC(truncation),
        parameters=problem.parameters,
        chunk=2**14,
    )


def make_optimizer(name: Name, theta: Tensor) -> torch.optim.Optimizer:
    """The optimizer with the settings that the bound is evaluated for."""
    if name == "sgd":
        return torch.optim.SGD([theta], lr=GAMMA(1))
    if name == "adagrad":
        return optim.Adagrad([theta], lr=GAMMA, **ADAGRAD)
    return optim.AMSGrad([theta], lr=GAMMA, **AMSGRAD)


def weight(optimizer: torch.optim.Optimizer, n: int) -> float:
    """w_n = γ_{n+1} λ_{n+1}."""
    if isinstance(optimizer, (optim.Adagrad, optim.AMSGrad)):
        return optimizer.lr_at(n + 1) * optimizer.preconditioner_bounds(n + 1)[0]
    return GAMMA(n + 1)


def log_grid(iterations: int) -> list[int]:
    """8 numbers in each decade, from `iterations` down to 10 or a little more."""
    count = int(8.0 * math.log10(iterations / 10.0) + 1e-9) + 1
    return sorted({round(iterations * 10.0 ** (-i / 8.0)) for i in range(count)})


__all__ = [
    "ADAGRAD",
    "ALPHAS",
    "AMSGRAD",
    "GAMMA",
    "OPTIMIZERS",
    "START",
    "STAY",
    "TRUNCATION",
    "Name",
    "WeightedAverage",
    "log_grid",
    "make_optimizer",
    "problem_for",
    "train",
    "weight",
]
