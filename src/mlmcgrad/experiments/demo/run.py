"""A first look: what the bias of one gradient costs, and what it does to training.

The chain has 8 states, so its stationary law, the exact gradient and the minimiser are known
(`problems.finite_chain`). First, many independent estimates of one gradient from the same bad
start: their bias, their variance and their cost. Then training by plain stochastic gradient with
γ_n = C n^{-1/2}, from the same θ_0 and for the same number of transitions, once with small steps,
where many iterations are needed, and once with large ones, where few are enough.
"""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console

from mlmcgrad.estimators import MLMC, Average, Estimator
from mlmcgrad.experiments.demo.figures import draw
from mlmcgrad.experiments.demo.findings import minimum, summarise
from mlmcgrad.experiments.demo.settings import Demo
from mlmcgrad.experiments.demo.tables import show
from mlmcgrad.experiments.folder import Findings, replaced
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.optim import SGD
from mlmcgrad.problems import FiniteChain, finite_chain
from mlmcgrad.runs.pool import one_thread
from mlmcgrad.runs.progress import bars
from mlmcgrad.schedules import power

# Independent calls: bias and variance have error bars from the spread between them.
_CALLS = 100
_TRAINING_CHAINS = 32
_START = (-2.0, 2.0)
_STEPS = {"small": 0.3, "large": 1.0}  # C of γ_n


def run(settings: Demo, console: Console) -> dict[str, Any]:
    """Measure the methods, train with them, write the run folder, draw and print."""
    with replaced(settings):
        findings = _compute(settings, console)
        findings.write(settings.out)
        path = draw(settings.out, findings)
    show(findings.summary["methods"], settings, console)
    console.print(f"figure: {path}", style="bold", highlight=False, soft_wrap=True)
    return findings.summary


def _compute(settings: Demo, console: Console) -> Findings:
    problem, methods = finite_chain(), _methods(settings.truncation)
    generator = torch.Generator().manual_seed(settings.seed)
    gradients: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    with one_thread(), bars(console) as progress:
        task = progress.add_task("", total=len(methods) * (1 + len(_STEPS) * settings.seeds))
        for name, (label, estimator, length) in methods.items():
            progress.update(task, description=label)
            measured = _measure(problem, estimator, length, settings.chains // _CALLS, generator)
            gradients.append({**measured, "method": name, "label": label})
            progress.advance(task)
        for name, (label, estimator, _) in methods.items():
            progress.update(task, description=f"training: {label}")
            for steps, scale in _STEPS.items():
                about = {"method": name, "label": label, "steps": steps, "scale": scale}
                for seed in range(settings.seeds):
                    curve = _train(estimator, scale, seed, settings)
                    curves.append({**about, "seed": seed, **curve})
                    progress.advance(task)
    return summarise(gradients, curves, problem)


def _methods(truncation: int) -> dict[str, tuple[str, Estimator, int]]:
    """Name → label, estimator, and the chain length whose bias it has."""
    t = truncation
    return {
        "short": ("4 steps", Average(4), 4),
        "average": (f"average, {t}", Average(t), t),
        "mlmc": (f"MLMC, T = {t}", MLMC(t, assignment="balanced"), t),
    }


def _measure(
    problem: FiniteChain, estimator: Estimator, length: int, chains: int, generator: torch.Generator
) -> dict[str, float]:
    """Bias (with its standard error), variance and cost of one chain's estimate."""
    gradient = MarkovGradient(problem.kernel(), problem.loss, estimator)
    (exact,) = problem.exact_gradient()
    calls, transitions = [], 0
    for _ in range(_CALLS):
        (estimated,), estimate = gradient.gradient(problem.start(chains), n=1, generator=generator)
        calls.append(estimated)
        transitions += estimate.transitions
    sample = torch.stack(calls)
    return {
        "bias": float((sample.mean(0) - exact).norm()),
        "bias_se": float(sample.var(0).sum().div(_CALLS).sqrt()),
        "exact_bias": float((problem.average_gradient(length) - exact).norm()),
        "variance": float(sample.var(0).sum() * chains),  # of one chain, not of a call
        "cost": transitions / (_CALLS * chains),
    }


def _train(estimator: Estimator, scale: float, seed: int, settings: Demo) -> dict[str, list[float]]:
    """V(θ_n) − min V at round numbers of transitions per chain."""
    problem = finite_chain()
    lowest = minimum(problem)
    with torch.no_grad():
        problem.theta.copy_(torch.tensor(_START))
    generator = torch.Generator().manual_seed(settings.seed + 1 + seed)
    gradient = MarkovGradient(problem.kernel(), problem.loss, estimator)
    optimizer = SGD(problem.parameters, lr=power(scale, -0.5))
    first, last = settings.truncation, settings.budget
    marks = [first * (last / first) ** (i / 40.0) for i in range(41)]
    excess: list[float] = []
    spent, n = 0.0, 0
    while len(excess) < len(marks):
        n += 1
        optimizer.zero_grad()
        estimate = gradient.backward(problem.start(_TRAINING_CHAINS), n=n, generator=generator)
        optimizer.step()
        spent += estimate.transitions / _TRAINING_CHAINS
        reached = sum(mark <= spent * (1.0 + 1e-9) for mark in marks) - len(excess)
        excess += [problem.objective() - lowest] * reached
    return {"transitions": marks, "excess": excess}
