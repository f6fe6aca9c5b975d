"""`mlmcgrad rates`: trains many replicas at once, and measures E‖∇V(θ_R)‖² for many N at once.

The problem is non-convex with a known gradient (`problems.sticky`), γ_n = c n^{-1/2} and
T_n = 2 n^α for α ∈ {0, 1/4, 1/2, 1}, with plain stochastic gradient, Adagrad and AMSGrad.

The replicas are the rows of one parameter. Each has its own chain, its own level K and its own
uniforms, and the optimizers work coordinate by coordinate, so the rows are independent runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from mlmcgrad import optim
from mlmcgrad.estimators import MLMC
from mlmcgrad.experiments.folder import simulated
from mlmcgrad.experiments.rates.average import WeightedAverage
from mlmcgrad.experiments.rates.figures import draw
from mlmcgrad.experiments.rates.findings import summarise
from mlmcgrad.experiments.rates.settings import (
    ALPHAS,
    EFFORT,
    GAMMA,
    OPTIONS,
    START,
    STAY,
    TRUNCATION,
    Name,
    Rates,
)
from mlmcgrad.experiments.rates.tables import show
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.problems import Sticky, sticky
from mlmcgrad.runs.pool import Report
from mlmcgrad.schedules import Schedule, power

_KINDS: dict[Name, Callable[..., optim.AdaptiveOptimizer]] = {
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "amsgrad": optim.AMSGrad,
}
_REPORTS = 100
_STREAMS = 1000


def run(settings: Rates, console: Console) -> dict[str, Any]:
    """Train in the run folder, compare with the theory, draw and print; returns the summary."""
    iterations, replicas = EFFORT[settings.preset]
    common = {"iterations": iterations, "replicas": replicas, "seed": settings.seed}
    pairs = [(name, alpha) for name in OPTIONS for alpha in ALPHAS]
    arguments = {
        f"{name} alpha={alpha:g}": {"optimizer": name, "alpha": alpha, "stream": stream, **common}
        for stream, (name, alpha) in enumerate(pairs)
    }
    with simulated(settings, train, arguments, summarise, console) as findings:
        path = draw(settings.out, findings)
        show(findings.summary, console)
    console.print(f"figure: {path}", style="bold", highlight=False, soft_wrap=True)
    return findings.summary


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
        report: called with the share of the work that is done.
        optimizer: which one.
        alpha: T_n = 2 n^α.
        iterations: the largest N.
        replicas: independent runs.
        seed: of the replicas' θ_0.
        stream: tells the chains of runs with the same seed apart.

    Returns:
        `optimizer` and `alpha`; `N`: the grid; `values`: E[‖∇V(θ_R)‖² | path] of each replica, one
        list for each N; `weights`: Σ_{n≤N} w_n for each N; `transitions`: chain steps of one
        replica; `level`: ‖∇V‖² of each replica where descent on the biased objective V_t of a
        constant T ends, None for a growing T.
    """
    problem = problem_for(replicas, torch.Generator().manual_seed(_STREAMS * seed))
    generator = torch.Generator().manual_seed(_STREAMS * seed + 1 + stream)
    chosen = make_optimizer(optimizer, problem.theta)
    gradient = make_gradient(problem, power(TRUNCATION, alpha))
    weights = torch.tensor([weight(chosen, n) for n in range(iterations + 1)], dtype=torch.float64)
    average = WeightedAverage(problem, weights, log_grid(iterations))
    start, transitions = problem.start(START), 0
    for n in range(1, iterations + 1):
        average.add(problem.theta)
        problem.theta.grad = None
        transitions += gradient.backward(start, problem.theta, n=n, generator=generator).transitions
        chosen.step()
        if n % max(1, iterations // _REPORTS) == 0:
            report(n / iterations)
    average.add(problem.theta)
    level = None
    if alpha == 0.0:
        ends = problem.biased_minima(problem.theta.detach(), int(TRUNCATION), START)
        level = problem.gradient(ends).square().sum(-1).tolist()
    return {
        "optimizer": optimizer,
        "alpha": alpha,
        "N": average.grid,
        "values": average.values().tolist(),
        "weights": weights.cumsum(0)[average.grid].tolist(),
        "transitions": transitions / replicas,
        "level": level,
    }


def problem_for(replicas: int, generator: torch.Generator) -> Sticky:
    """The problem, one θ_0 for each replica, uniform on the torus."""
    problem = sticky(replicas, stay=STAY)
    start = torch.rand(replicas, 2, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        problem.theta.copy_(start * (2.0 * math.pi))
    return problem


def make_gradient(problem: Sticky, truncation: Schedule) -> MarkovGradient:
    """Gives every replica, a row of θ, the estimate of its own chain."""
    return MarkovGradient(
        problem.kernel(),
        problem.loss,
        MLMC(truncation),
        parameters=problem.parameters,
        chunk=2**14,
        reduction="sum",
    )


def make_optimizer(name: Name, theta: Tensor) -> optim.AdaptiveOptimizer:
    """The optimizer with the settings that the bound is evaluated for."""
    return _KINDS[name]([theta], lr=GAMMA, **OPTIONS[name])


def weight(optimizer: optim.AdaptiveOptimizer, n: int) -> float:
    """w_n = γ_{n+1} λ_{n+1}."""
    return optimizer.lr_at(n + 1) * optimizer.preconditioner_bounds(n + 1)[0]


def log_grid(iterations: int) -> list[int]:
    """8 numbers in each decade, from `iterations` down to 10 or a little more."""
    count = int(8.0 * math.log10(iterations / 10.0) + 1e-9) + 1
    return sorted({round(iterations * 10.0 ** (-i / 8.0)) for i in range(count)})
