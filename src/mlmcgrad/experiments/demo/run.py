"""A first look: what the bias of one gradient costs, and what it does to training.

The chain has 8 states, so its stationary law, the exact gradient and the minimiser are known
(problems/finite_chain.py). First, many independent estimates of one gradient from the same bad
start: their bias, their variance and their cost. Then training by plain stochastic gradient with
γ_n = C n^{-1/2}, from the same θ_0 and for the same number of transitions, once with small steps,
where many iterations are needed, and once with large ones, where few are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mlmcgrad.estimators import MLMC, Average, Estimator
from mlmcgrad.experiments.demo.settings import Demo
from mlmcgrad.experiments.plots import COLOURS, log_axes, panels
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.problems import FiniteChain, finite_chain
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.pool import one_thread

# Independent calls: bias and variance have error bars from the spread between them.
_CALLS = 100
_TRAINING_CHAINS = 32
_START = (-2.0, 2.0)
_STEPS = {"small": 0.3, "large": 1.0}


def run(config: Demo, console: Console | None = None) -> dict[str, Any]:
    """Measure the methods, train with them, write the run folder, draw and print."""
    console = console or Console()
    records.write_config(config.out, config)
    problem, methods = finite_chain(), _methods(config.truncation)
    generator = torch.Generator().manual_seed(config.seed)
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    with one_thread(), Progress(console=console, transient=True) as progress:
        training = len(_STEPS) * config.seeds * config.budget
        task = progress.add_task("", total=len(methods) * (config.budget + training))
        for name, (label, estimator, length) in methods.items():
            progress.update(task, description=label)
            row = _measure(problem, estimator, length, config.chains // _CALLS, generator)
            progress.advance(task, config.budget)
            rows.append({**row, "method": name, "label": label})
        for name, (label, estimator, _) in methods.items():
            progress.update(task, description=f"training: {label}")
            for steps, scale in _STEPS.items():
                for seed in range(config.seeds):
                    curve = _train(
                        estimator, scale, config, seed, lambda n: progress.advance(task, n)
                    )
                    about = {"method": name, "label": label, "steps": steps, "scale": scale}
                    curves.append({**about, "seed": seed, **curve})
    for row in rows:
        for steps in _STEPS:
            row[f"final_{steps}"] = _reached(row["method"], steps, curves)
    summary = {"methods": rows, "ladder": _ladder(problem, config.truncation)}
    records.write_lines(config.out / records.METRICS, curves)
    records.write_json(config.out / records.SUMMARY, summary)
    draw(config.out)
    _print(rows, config, console)
    return summary


def draw(folder: Path) -> None:
    """Draw the figure from what is in the run folder."""
    summary = records.read_json(folder / records.SUMMARY)
    ladder, curves = summary["ladder"], records.read_lines(folder / records.METRICS)
    with panels(3, folder / "demo") as (_, (left, *rest)):
        length, bias = [r["length"] for r in ladder], [r["bias"] for r in ladder]
        left.plot(length, bias, "o-", color=COLOURS["average"], label="plain average")
        cost = [r["mlmc_cost"] for r in ladder]
        left.plot(cost, bias, "s-", color=COLOURS["mlmc"], label="MLMC")
        slope = [bias[-1] * length[-1] / t for t in length[-3:]]
        left.plot(length[-3:], slope, "--", color=COLOURS["theory"], lw=1.0, label="1/cost")
        left.set(
            xlabel="transitions per estimate (mean)",
            ylabel="norm of the bias (exact)",
            title="One gradient",
        )
        for axes, steps in zip(rest, _STEPS, strict=True):
            _draw_training(axes, steps, [c for c in curves if c["steps"] == steps])
        log_axes(left)
        left.legend()


def _draw_training(axes: Axes, steps: str, curves: list[dict[str, Any]]) -> None:
    for method in dict.fromkeys(c["method"] for c in curves):
        mine = [c for c in curves if c["method"] == method]
        x, values = mine[0]["transitions"], list(zip(*(c["excess"] for c in mine), strict=True))
        colour = COLOURS[method]
        axes.plot(x, [sum(v) / len(v) for v in values], color=colour, label=mine[0]["label"])
        axes.fill_between(
            x, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.2, lw=0
        )
    axes.set(
        xlabel="transitions per chain",
        ylabel="V(θ) − min V",
        title=f"Training, {steps} steps (mean, range of {len(mine)} runs)",
    )
    log_axes(axes, "x")
    axes.set_yscale("log")
    axes.legend()


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
        (estimated,), spent = gradient.gradient(problem.start(chains), n=1, generator=generator)
        calls.append(estimated)
        transitions += spent.transitions
    sample = torch.stack(calls)
    return {
        "bias": float((sample.mean(0) - exact).norm()),
        "bias_se": float(sample.var(0).sum().div(_CALLS).sqrt()),
        "exact_bias": float((problem.average_gradient(length) - exact).norm()),
        "variance": float(sample.var(0).sum() * chains),  # of one chain, not of a call
        "cost": transitions / (_CALLS * chains),
    }


def _train(
    estimator: Estimator, scale: float, config: Demo, seed: int, advance: Callable[[int], None]
) -> dict[str, list[float]]:
    """V(θ_n) − min V at round numbers of transitions per chain."""
    problem = finite_chain()
    lowest = minimum(problem)
    with torch.no_grad():
        problem.theta.copy_(torch.tensor(_START))
    generator = torch.Generator().manual_seed(config.seed + 1 + seed)
    gradient = MarkovGradient(problem.kernel(), problem.loss, estimator)
    optimizer = torch.optim.SGD(problem.parameters, lr=scale)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: (n + 1.0) ** -0.5)
    first, last = float(config.truncation), float(config.budget)
    marks = [first * (last / first) ** (i / 40.0) for i in range(41)]
    excess: list[float] = []
    spent, n = 0.0, 0
    while len(excess) < len(marks):
        n += 1
        optimizer.zero_grad()
        estimate = gradient.backward(problem.start(_TRAINING_CHAINS), n=n, generator=generator)
        optimizer.step()
        scheduler.step()
        before, spent = spent, spent + estimate.transitions / _TRAINING_CHAINS
        advance(int(min(spent, last)) - int(min(before, last)))
        reached = sum(mark <= spent * (1.0 + 1e-9) for mark in marks) - len(excess)
        excess += [problem.objective() - lowest] * reached
    return {"transitions": marks, "excess": excess}


def minimum(problem: FiniteChain) -> float:
    """The smallest V(θ), by Newton's method: V is convex and its Hessian is Cov_π(f)."""
    theta, features = problem.theta.detach().clone(), problem.features
    for _ in range(50):
        law = (features @ theta).softmax(0)
        mean = law @ features
        hessian = (features - mean).T @ (law[:, None] * (features - mean))
        theta -= torch.linalg.solve(hessian, mean - problem.data_mean)
    return FiniteChain(theta, features, problem.data_mean).objective()


def _reached(method: object, steps: str, curves: list[dict[str, Any]]) -> float:
    """V − min V at the end of training, mean over seeds."""
    finals = [c["excess"][-1] for c in curves if c["method"] == method and c["steps"] == steps]
    return float(sum(finals) / len(finals))


def _ladder(problem: FiniteChain, truncation: int) -> list[dict[str, float]]:
    """Exact bias of chains of length 2, 4, … T, and what each costs as an average and as MLMC."""
    (exact,) = problem.exact_gradient()
    return [
        {
            "length": t,
            "mlmc_cost": MLMC(t).expected_length(1),
            "bias": float((problem.average_gradient(t) - exact).norm()),
        }
        for t in (2**k for k in range(1, int(math.log2(truncation)) + 1))
    ]


def _print(rows: list[dict[str, Any]], config: Demo, console: Console) -> None:
    table = Table(title="A gradient whose exact value is known (8-state chain)")
    for name in ("method", "bias", "exact", "std. dev.", "cost", "small", "large"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["label"],
            f"{row['bias']:.3f}±{row['bias_se']:.3f}",
            f"{row['exact_bias']:.3f}",
            f"{math.sqrt(row['variance']):.2f}",
            f"{row['cost']:.1f}",
            f"{row['final_small']:.4f}",
            f"{row['final_large']:.4f}",
        )
    console.print(table)
    winners = {steps: min(rows, key=lambda row: row[f"final_{steps}"])["label"] for steps in _STEPS}
    console.print(
        "bias, std. dev., cost (transitions): of one estimate by one chain. small, large: "
        f"V − min V after training with small and with large steps for {config.budget} "
        "transitions per chain.\n"
        f"MLMC has the bias of the average of {config.truncation} steps at "
        f"{rows[2]['cost'] / rows[1]['cost']:.0%} of its cost, and more variance. Small steps, "
        f"many iterations: best is {winners['small']!r}. Large steps, few iterations: best is "
        f"{winners['large']!r}."
    )
    console.print(f"figure: {config.out / 'demo.png'}", style="bold", highlight=False)


__all__ = ["draw", "minimum", "run"]
