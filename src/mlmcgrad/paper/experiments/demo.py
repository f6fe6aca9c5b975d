"""A first look: what the bias of one gradient costs, and what it does to training.

The chain has 8 states, so its stationary law, the exact gradient and the minimiser are known
(`problems.finite_chain`). First, many independent estimates of one gradient from the same bad
start: their bias, their variance and their cost. Then training by plain stochastic gradient with
γ_n = C n^{-1/2}, from the same θ_0 and for the same number of transitions: once with small steps,
which need many iterations, and once with large steps, for which few are enough.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from rich.console import Console

from mlmcgrad.estimators import MLMC, Average, Estimator
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.optim import SGD
from mlmcgrad.paper.experiments.folder import Findings, replaced
from mlmcgrad.paper.experiments.plots import COLOURS, log_axes, panels, print_path, table
from mlmcgrad.paper.experiments.settings import DemoSettings
from mlmcgrad.paper.runs.process import bars, threads
from mlmcgrad.problems import FiniteChain, finite_chain
from mlmcgrad.schedules import power

_CALLS = 100  # independent calls, whose spread gives the error bars of bias and variance
_TRAINING_CHAINS = 32
_START = (-2.0, 2.0)
_STEPS = {"small": 0.3, "large": 1.0}  # C of γ_n


def run(settings: DemoSettings, console: Console) -> dict[str, Any]:
    """Measure the methods, train with them, draw and print; returns the summary."""
    with replaced(settings, settings.out):
        findings = _compute(settings, console)
        findings.write(settings.out)
        _show(findings.summary["methods"], settings, console)
        print_path(draw(settings.out, findings), console)
    return findings.summary


def _compute(settings: DemoSettings, console: Console) -> Findings:
    problem, methods = finite_chain(), _methods(settings.truncation)
    generator = torch.Generator().manual_seed(settings.seed)
    gradients: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    with threads(1), bars(console) as progress:
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
    return _summarise(gradients, curves, problem)


def _methods(truncation: int) -> dict[str, tuple[str, Estimator, int]]:
    """Map the name of a method to its label, its estimator and the chain length of equal bias."""
    t = truncation
    return {
        "short": ("4 steps", Average(4), 4),
        "average": (f"average, {t}", Average(t), t),
        "mlmc": (f"MLMC, T = {t}", MLMC(t, assignment="balanced"), t),
    }


def _measure(
    problem: FiniteChain, estimator: Estimator, length: int, chains: int, generator: torch.Generator
) -> dict[str, float]:
    """Measure bias (with its standard error), variance and cost of one chain's estimate."""
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


def _train(
    estimator: Estimator, scale: float, seed: int, settings: DemoSettings
) -> dict[str, list[float]]:
    """Train, and return V(θ_n) − min V at 41 numbers of transitions per chain."""
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


def _summarise(
    gradients: list[dict[str, Any]], curves: list[dict[str, Any]], problem: FiniteChain
) -> Findings:
    """Return the curves, and for each method its gradient and V − min V at the end of training.

    `ladder` has the exact bias of chains of length 2, 4, … 1024, and the cost of MLMC with it.
    """
    for row in gradients:
        for steps in dict.fromkeys(c["steps"] for c in curves):
            runs = [c for c in curves if (c["method"], c["steps"]) == (row["method"], steps)]
            row[f"final_{steps}"] = fmean(c["excess"][-1] for c in runs)
    (exact,) = problem.exact_gradient()
    ladder = [
        {
            "length": t,
            "mlmc_cost": MLMC(t).expected_length(),
            "bias": float((problem.average_gradient(t) - exact).norm()),
        }
        for t in (2**k for k in range(1, 11))
    ]
    return Findings(curves, {"methods": gradients, "ladder": ladder})


def minimum(problem: FiniteChain) -> float:
    """Return the smallest V(θ), by Newton's method: V is convex and its Hessian is Cov_π(f)."""
    theta, features = problem.theta.detach().clone(), problem.features
    for _ in range(50):
        law = (features @ theta).softmax(0)
        mean = law @ features
        hessian = (features - mean).T @ (law[:, None] * (features - mean))
        theta -= torch.linalg.solve(hessian, mean - problem.data_mean)
    return FiniteChain(theta, features, problem.data_mean).objective()


def draw(folder: Path, findings: Findings) -> Path:
    """Draw the bias of one gradient against its cost, by itself and beside the training curves."""
    ladder, curves = findings.summary["ladder"], findings.rows
    with panels(1, folder / "bias-cost") as (_, (axes,)):
        _draw_bias(axes, ladder)
    with panels(3, folder / "demo") as (_, (left, *rest)):
        _draw_bias(left, ladder)
        for axes, steps in zip(rest, dict.fromkeys(c["steps"] for c in curves), strict=True):
            _draw_training(axes, steps, [c for c in curves if c["steps"] == steps])
    return folder / "demo.png"


def _draw_bias(axes: Axes, ladder: list[dict[str, Any]]) -> None:
    length, cost, bias = ([r[name] for r in ladder] for name in ("length", "mlmc_cost", "bias"))
    axes.plot(length, bias, "o-", color=COLOURS["average"], label="average of T steps")
    axes.plot(cost, bias, "s-", color=COLOURS["mlmc"], label="MLMC with truncation T")
    place: Any = {"xytext": (-8, -12), "textcoords": "offset points", "ha": "right"}
    for t, *point in list(zip(length, cost, bias, strict=True))[2::3]:
        axes.annotate(f"T = {t}", tuple(point), fontsize=8, **place)
    axes.set(xlabel="transitions per estimate (mean)", ylabel="norm of the bias (exact)")
    axes.set_title("Bias of one gradient against its cost")
    log_axes(axes)
    axes.legend()


def _draw_training(axes: Axes, steps: str, curves: list[dict[str, Any]]) -> None:
    for method in dict.fromkeys(c["method"] for c in curves):
        runs = [c for c in curves if c["method"] == method]
        x, values = runs[0]["transitions"], np.array([c["excess"] for c in runs])
        axes.plot(x, values.mean(0), color=COLOURS[method], label=runs[0]["label"])
        band: Any = {"color": COLOURS[method], "alpha": 0.2, "lw": 0}
        axes.fill_between(x, values.min(0), values.max(0), **band)
    axes.set(xlabel="transitions per chain", ylabel="V(θ) − min V")
    axes.set_title(f"Training, {steps} steps (mean, range of {len(runs)} runs)")
    log_axes(axes)
    axes.legend()


def _show(methods: list[dict[str, Any]], settings: DemoSettings, console: Console) -> None:
    """Print one line per method, and a summary in two sentences."""
    shown = table(
        "A gradient whose exact value is known (8-state chain)",
        *("method", "bias", "exact", "std. dev.", "cost", "small", "large"),
    )
    for row in methods:
        shown.add_row(
            row["label"],
            f"{row['bias']:.3f}±{row['bias_se']:.3f}",
            f"{row['exact_bias']:.3f}",
            f"{math.sqrt(row['variance']):.2f}",
            f"{row['cost']:.1f}",
            f"{row['final_small']:.4f}",
            f"{row['final_large']:.4f}",
        )
    console.print(shown)
    cost = {row["method"]: row["cost"] for row in methods}
    best_small = min(methods, key=lambda row: row["final_small"])["label"]
    best_large = min(methods, key=lambda row: row["final_large"])["label"]
    console.print(
        "bias, std. dev., cost: of one chain's estimate, the cost in transitions. small, large: "
        f"V − min V after training with small and with large steps for {settings.budget} "
        "transitions per chain.\n"
        f"MLMC has the bias of the average of {settings.truncation} steps at "
        f"{cost['mlmc'] / cost['average']:.0%} of its cost, and more variance. Best with small "
        f"steps and many iterations: {best_small!r}. Best with large steps and few iterations: "
        f"{best_large!r}."
    )
