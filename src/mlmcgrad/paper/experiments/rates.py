"""Theorems 1 to 3 measured: E‖∇V(θ_R)‖² against N, the predicted rate and the bound.

The problem is non-convex with a known gradient (`problems.sticky`), γ_n = c n^{-1/2} and
T_n = 2 n^α for α ∈ {0, 1/4, 1/2, 1}, with plain stochastic gradient, Adagrad and AMSGrad. The
replicas are the rows of one parameter. Each has its own chain, its own level K and its own
uniforms, and the optimizers work coordinate by coordinate, so the rows are independent runs.

The `verdict` of each run answers three questions:

- Is the evaluated bound above the measured value for every N?
- Does a growing T_n reach the predicted slope, or a steeper one? The slope is fitted in log-log
  over the last decade of N; its standard error is a jackknife over groups of replicas.
  `predicted_slope` is that of N^exponent (log N)^log_power over the same N.
- Does a constant T level off at its bias? It minimises a biased V_t, and the value of ‖∇V‖² at the
  minima of V_t is known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from mlmcgrad import optim, theory
from mlmcgrad.estimators import MLMC
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.paper.experiments.accuracy import fit_power
from mlmcgrad.paper.experiments.folder import Findings, simulated
from mlmcgrad.paper.experiments.plots import COLOURS, CYCLE, log_axes, panels, print_path, table
from mlmcgrad.paper.experiments.settings import Preset, RatesSettings
from mlmcgrad.paper.runs.pool import Report
from mlmcgrad.problems import Sticky, sticky
from mlmcgrad.schedules import Schedule, power
from mlmcgrad.theory.bounds import EXACT

Name: TypeAlias = Literal["sgd", "adagrad", "amsgrad"]

DIMENSION = 2
ALPHAS = (0.0, 0.25, 0.5, 1.0)
STAY = 0.7  # the chain forgets in about 3 steps: an average of two leaves a bias that can be seen
START = 2  # the state from which that bias leaves the largest gradient of V
TRUNCATION = 2.0  # T_1; also T_n for every n when α = 0
# With c = 0.2 and N = 20 000 the runs with α = 1 had slopes of -0.26 to -0.28 for a predicted
# -0.27, equal within the error; smaller steps have less noise and fall faster.
GAMMA = power(0.1, -0.5)
OPTIONS: dict[Name, dict[str, Any]] = {
    "sgd": {},
    # ε_1 of the order 1/M, or the first iterate would carry most of the weight of R.
    "adagrad": {"eps": 1.0, "clip": 2.0},
    "amsgrad": {"betas": (0.9, 0.999), "eps": 1.0, "clip": 2.0},
}
"""Options of each optimizer besides the step size."""
# The same as the theorems name them: ε = 1/eps for Adagrad, δ = eps² for AMSGrad.
_SYMBOLS: dict[Name, dict[str, float]] = {
    "sgd": {},
    "adagrad": {"epsilon": 1.0, "clip": 2.0},
    "amsgrad": {"rho1": 0.9, "rho2": 0.999, "delta": 1.0, "clip": 2.0},
}

# The largest N, and the number of replicas.
EFFORT: dict[Preset, tuple[int, int]] = {
    "smoke": (60, 16),
    "quick": (15_000, 128),
    "full": (200_000, 256),
}
_KINDS: dict[Name, Callable[..., optim.AdaptiveOptimizer]] = {
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "amsgrad": optim.AMSGrad,
}
_METHODS: dict[Name, theory.Method] = {"sgd": "general", "adagrad": "adagrad", "amsgrad": "amsgrad"}
_COLOURS = {0.0: COLOURS["short"], 0.25: CYCLE[4], 0.5: COLOURS["average"], 1.0: COLOURS["mlmc"]}
_TITLES = {"sgd": "Stochastic gradient", "adagrad": "MLMC-Adagrad", "amsgrad": "MLMC-AMSGrad"}
_STREAMS = 1000  # seeds of generators are this many times the seed of the run, and a few more
_REPORTS = 100
_GROUPS = 8  # of the jackknife
_FLAT = 0.1  # a curve of this slope or less over a decade has levelled off
_NEAR = 0.15  # and its latest iterates are this close, relatively, to the level of its bias


def run(settings: RatesSettings, console: Console) -> dict[str, Any]:
    """Train in the run folder, compare with the theory, draw and print; returns the summary."""
    iterations, replicas = EFFORT[settings.preset]
    common = {"iterations": iterations, "replicas": replicas, "seed": settings.seed}
    pairs = [(name, alpha) for name in OPTIONS for alpha in ALPHAS]
    arguments = {
        f"{name} alpha={alpha:g}": {"optimizer": name, "alpha": alpha, "stream": stream, **common}
        for stream, (name, alpha) in enumerate(pairs)
    }
    with simulated(settings, train, arguments, _summarise, console) as findings:
        show(findings.summary, console)
        print_path(draw(settings.out, findings), console)
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
        report: called with the fraction of the work done.
        optimizer: name of the optimizer.
        alpha: T_n = 2 n^α.
        iterations: the largest N.
        replicas: independent runs.
        seed: of the replicas' θ_0.
        stream: of the chains, different in runs with the same seed.

    Returns:
        `optimizer` and `alpha`; `N`: the grid; `values`: E[‖∇V(θ_R)‖² | path] of each replica, one
        list per N; `weights`: Σ_{n≤N} w_n for each N; `transitions`: chain steps per replica;
        `level`: ‖∇V‖² of each replica at the minimum of the biased objective V_t to which a
        constant T converges, None for a growing T.
    """
    problem = problem_for(replicas, torch.Generator().manual_seed(_STREAMS * seed))
    generator = torch.Generator().manual_seed(_STREAMS * seed + 1 + stream)
    chosen = make_optimizer(optimizer, problem.theta)
    gradient = make_gradient(problem, power(TRUNCATION, alpha))
    weights = torch.tensor([weight(chosen, n) for n in range(iterations + 1)], dtype=torch.float64)
    start, grid, transitions = problem.start(START), log_grid(iterations), 0

    def path() -> Iterator[Tensor]:
        nonlocal transitions
        for n in range(1, iterations + 1):
            yield problem.theta.detach().clone()
            problem.theta.grad = None
            estimate = gradient.backward(start, problem.theta, n=n, generator=generator)
            transitions += estimate.transitions
            chosen.step()
            if n % max(1, iterations // _REPORTS) == 0:
                report(n / iterations)
        yield problem.theta.detach().clone()

    values = [average.tolist() for average in weighted_averages(problem, weights, grid, path())]
    level = None
    if alpha == 0.0:
        ends = problem.biased_minima(problem.theta.detach(), int(TRUNCATION), START)
        level = problem.gradient(ends).square().sum(-1).tolist()
    return {
        "optimizer": optimizer,
        "alpha": alpha,
        "N": grid,
        "values": values,
        "weights": weights.cumsum(0)[grid].tolist(),
        "transitions": transitions / replicas,
        "level": level,
    }


def problem_for(replicas: int, generator: torch.Generator) -> Sticky:
    """Return the problem with θ_0 of each replica drawn uniformly on the torus."""
    problem = sticky(replicas, stay=STAY)
    start = torch.rand(replicas, DIMENSION, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        problem.theta.copy_(start * (2.0 * math.pi))
    return problem


def make_gradient(problem: Sticky, truncation: Schedule) -> MarkovGradient:
    """Return the gradient that gives every replica, a row of θ, the estimate of its own chain."""
    return MarkovGradient(
        problem.kernel(),
        problem.loss,
        MLMC(truncation),
        parameters=problem.parameters,
        chunk=2**14,
        reduction="sum",
    )


def make_optimizer(name: Name, theta: Tensor) -> optim.AdaptiveOptimizer:
    """Return the optimizer with the options for which the bound is evaluated."""
    return _KINDS[name]([theta], lr=GAMMA, **OPTIONS[name])


def weight(optimizer: optim.AdaptiveOptimizer, n: int) -> float:
    """Return w_n = γ_{n+1} λ_{n+1}."""
    return optimizer.lr_at(n + 1) * optimizer.preconditioner_bounds(n + 1)[0]


def log_grid(iterations: int) -> list[int]:
    """Return 8 numbers per decade, from `iterations` down to 10 or slightly above."""
    count = int(8.0 * math.log10(iterations / 10.0) + 1e-9) + 1
    return sorted({round(iterations * 10.0 ** (-i / 8.0)) for i in range(count)})


def weighted_averages(
    problem: Sticky, weights: Tensor, grid: list[int], path: Iterable[Tensor]
) -> Iterator[Tensor]:
    """Yield the average over the random iterate R of each replica, for each N of a grid.

    Given the path θ_0 … θ_N, (replicas, 2) each, R has P(R = n) ∝ w_n = γ_{n+1} λ_{n+1}, so without
    drawing R exactly

        E[‖∇V(θ_R)‖² | path] = Σ_{n≤N} w_n ‖∇V(θ_n)‖² / Σ_{n≤N} w_n,

    for every N of an increasing grid from the same path.
    """
    norms, iterates, n, total = weights.cumsum(0), iter(path), 0, torch.zeros(())
    while block := list(islice(iterates, 256)):  # gradients are computed for many iterates at once
        theta, end = torch.stack(block), n + len(block)  # (iterates, replicas, 2)
        squares = problem.gradient(theta.flatten(0, 1)).square().sum(-1).view(len(block), -1)
        sums = (weights[n:end, None] * squares).cumsum(0) + total
        yield from (sums[N - n] / norms[N] for N in grid if n <= N < end)
        n, total = end, sums[-1]


@cache  # the smoothness is a maximum over a grid, which takes seconds
def constants() -> tuple[theory.Assumptions, dict[str, float]]:
    """Return the constants of the problem, for the theorems and by name.

    ζ = 1, α = a from the kernel; β from the matrix at any θ (only d̄(t) = a^t enters it).
    """
    problem = sticky(stay=STAY)
    matrix = problem.matrix(torch.zeros(1, DIMENSION, dtype=torch.float64))[0]
    chain = theory.Ergodicity(zeta=1.0, alpha=STAY, beta=theory.ergodicity(matrix).beta)
    c, smooth = theory.constants(DIMENSION, chain), problem.smoothness()
    names = {"zeta": chain.zeta, "alpha": chain.alpha, "beta": chain.beta}
    names |= dataclasses.asdict(c) | dataclasses.asdict(smooth)
    return theory.Assumptions(c, G=smooth.G, L=smooth.L, gap=smooth.gap), names


@np.errstate(under="ignore")  # powers of ρ1 and ρ2
def bound(
    name: Name, alpha: float, N: list[int], problem: theory.Assumptions, exact: int = EXACT
) -> theory.Bound:
    """Return the theorem's bound at each N for a run; `exact` is passed to `theory.bounds`."""
    function = getattr(theory.bounds, _METHODS[name])
    schedules = {"gamma": GAMMA, "truncation": power(TRUNCATION, alpha)}
    return function(N, problem, **schedules, **_SYMBOLS[name], exact=exact)


def rate(name: Name, alpha: float) -> theory.Rate:
    """Return the corollary's order in N."""
    return getattr(theory.rates, _METHODS[name])(-GAMMA.exponent, alpha)


def _summarise(results: dict[str, Any]) -> Findings:
    """Return one row per run and N; the summary has one entry per run."""
    problem, names = constants()
    rows, runs = [], []
    for result in results.values():
        lines = _lines(result, problem)
        rows += lines
        runs.append(_summary(result, lines, problem))
    judge(runs)
    replicas = len(next(iter(results.values()))["values"][0])
    return Findings(rows, {"constants": names, "replicas": replicas, "runs": runs})


def fit(N: list[int], values: NDArray[np.float64]) -> tuple[float, float]:
    """Fit the slope of the mean over replicas, over the last decade of N.

    Args:
        N: the grid.
        values: (N, replicas); the replicas are independent.

    Returns:
        The slope, and its delete-one-group jackknife standard error.
    """
    x = [n for n in N if 10 * n >= N[-1]]
    y = values[-len(x) :]
    groups = np.array_split(np.arange(y.shape[1]), _GROUPS)
    without = np.array(
        [fit_power(x, np.delete(y, group, axis=1).mean(1).tolist()).slope for group in groups]
    )
    error = math.sqrt((_GROUPS - 1) * float(without.var()))
    return fit_power(x, y.mean(1).tolist()).slope, error


def judge(runs: list[dict[str, Any]]) -> None:
    """Add to every run a verdict: whether it agrees with the theory."""
    for run in runs:
        if run["alpha"] > 0.0:
            reached = run["slope"] <= run["predicted_slope"] + 2.0 * run["slope_se"]
            verdict = "reached" if reached else "SLOWER"
        else:
            others = (
                other["final_interval"][1]
                for other in runs
                if other["optimizer"] == run["optimizer"] and other["alpha"] >= 0.5
            )
            flat = abs(run["slope"]) <= _FLAT + 2.0 * run["slope_se"]
            near = abs(run["recent"] / run["level"] - 1.0) <= _NEAR
            above = run["final_interval"][0] > max(others)
            verdict = "levels off" if flat and near and above else "NOT LEVEL"
        run["verdict"] = verdict if run["bound_holds"] else f"{verdict}, BOUND FAILS"


def _lines(result: dict[str, Any], problem: theory.Assumptions) -> list[dict[str, Any]]:
    """Return one row per N: measured value, bound, terms."""
    name, alpha, values = result["optimizer"], result["alpha"], np.array(result["values"])
    limit = bound(name, alpha, result["N"], problem)
    errors = values.std(1, ddof=1) / math.sqrt(values.shape[1])
    sums = np.array(result["weights"])
    # The same average over the iterates since the previous N only.
    recent = np.diff(values.mean(1) * sums, prepend=0.0) / np.diff(sums, prepend=0.0)
    return [
        {
            "optimizer": name,
            "alpha": alpha,
            "N": N,
            "measured": float(values[i].mean()),
            "standard_error": float(errors[i]),
            "recent": float(recent[i]),
            "bound": float(limit.total[i]),
            "terms": {term: float(array[i]) for term, array in limit.terms.items()},
        }
        for i, N in enumerate(result["N"])
    ]


def _summary(
    result: dict[str, Any], lines: list[dict[str, Any]], problem: theory.Assumptions
) -> dict[str, Any]:
    name, alpha, N = result["optimizer"], result["alpha"], result["N"]
    slope, error = fit(N, np.array(result["values"]))
    order = rate(name, alpha)
    decade = [n for n in N if 10 * n >= N[-1]]
    powers = [10**k for k in range(1, 19)]
    limits = bound(name, alpha, powers, problem, exact=2**10).total  # integrals, not long sums
    below = (n for n, limit in zip(powers, limits, strict=True) if limit < problem.G**2)
    final, half = lines[-1]["measured"], 1.96 * lines[-1]["standard_error"]
    summary = {
        "optimizer": name,
        "alpha": alpha,
        "slope": slope,
        "slope_se": error,
        "predicted_slope": fit_power(
            decade, [_shape(n, order.exponent, order.log_power) for n in decade]
        ).slope,
        "predicted_exponent": order.exponent,
        "log_power": order.log_power,
        "bound_holds": all(line["bound"] >= line["measured"] for line in lines),
        "fitted_from": decade[0],
        "N": N[-1],
        "final": final,
        "final_interval": [final - half, final + half],
        "final_bound": lines[-1]["bound"],
        "bound_below_G2_from": next(below, None),
        "transitions": result["transitions"],
    }
    if result["level"] is not None:
        summary |= {"level": float(np.mean(result["level"])), "recent": lines[-1]["recent"]}
    return summary


def _shape(N: int, exponent: float, log_power: float) -> float:
    return N**exponent * math.log(N) ** log_power


def draw(folder: Path, findings: Findings) -> Path:
    """Draw measured curves below, evaluated bounds above: one column per optimizer."""
    summary = findings.summary
    layout: dict[str, Any] = {"height_ratios": (1, 2), "sharex": "col", "sharey": "row"}
    with panels(2 * len(_TITLES), folder / "rates", rows=2, **layout) as (figure, axes):
        figure.set_size_inches(5.0 * len(_TITLES), 6.6)
        bounds, measured = axes[: len(_TITLES)], axes[len(_TITLES) :]
        for top, bottom, name in zip(bounds, measured, _TITLES, strict=True):
            for run in (r for r in summary["runs"] if r["optimizer"] == name):
                alpha = run["alpha"]
                rows = [r for r in findings.rows if (r["optimizer"], r["alpha"]) == (name, alpha)]
                _draw_run(bottom, run, rows)
                N = [r["N"] for r in rows]
                top.plot(N, [r["bound"] for r in rows], ":", color=_COLOURS[alpha], lw=2.2)
            top.axhline(summary["constants"]["G"] ** 2, color=COLOURS["theory"], lw=0.8)
            top.set(title=_TITLES[name])
            log_axes(top, "y")
            bottom.set_xlabel("iterations N")
            log_axes(bottom)
        bounds[0].set_ylabel("bound of E‖∇V(θ_R)‖²")
        measured[0].set_ylabel("measured E‖∇V(θ_R)‖² (bands: 95 % for the mean)")
        black, grey, left = COLOURS["theory"], COLOURS["short"], measured[0]
        left.plot([], [], "--", color=black, lw=1.4, label="predicted rate")
        left.plot([], [], "-.", color=grey, lw=1.4, label="α = 0: level of its bias")
        left.plot([], [], color=grey, lw=1.0, label="α = 0: latest iterates only")
        left.legend(loc="lower left", fontsize=8.5)
        bounds[0].plot([], [], ":", color=black, lw=2.2, label="evaluated bound")
        bounds[0].plot([], [], color=black, lw=0.8, label="G², without a theorem")
        bounds[0].legend(fontsize=8.5)
    return folder / "rates.png"


def _draw_run(axes: Axes, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    colour = _COLOURS[run["alpha"]]
    N, mean = [r["N"] for r in rows], [r["measured"] for r in rows]
    low = [r["measured"] - 1.96 * r["standard_error"] for r in rows]
    high = [r["measured"] + 1.96 * r["standard_error"] for r in rows]
    axes.plot(N, mean, color=colour, label=f"α = {run['alpha']:g}")
    axes.fill_between(N, low, high, color=colour, alpha=0.25, lw=0)
    if run["alpha"] > 0.0:
        fitted = [r for r in rows if r["N"] >= run["fitted_from"]]
        N = [r["N"] for r in fitted]
        shape = [_shape(n, run["predicted_exponent"], run["log_power"]) for n in N]
        scale = fitted[0]["measured"] / shape[0]
        axes.plot(N, [scale * value for value in shape], "--", color=colour, lw=1.4)
    else:
        axes.axhline(run["level"], ls="-.", color=colour, lw=1.4)
        axes.plot(N, [r["recent"] for r in rows], color=colour, lw=1.0)


def show(summary: dict[str, Any], console: Console) -> None:
    """Print one line per run with its verdict, and how to read it."""
    runs = summary["runs"]
    title = f"E‖∇V(θ_R)‖² after N = {runs[0]['N']} iterations, T_n = 2 n^α"
    shown = table(title, "optimizer", "α", "measured", "slope", "theory", "bound")
    shown.add_column("verdict")
    for run in runs:
        half = run["final_interval"][1] - run["final"]
        shown.add_row(
            run["optimizer"] if run["alpha"] == ALPHAS[0] else "",
            f"{run['alpha']:g}",
            f"{run['final']:.4f}±{half:.4f}",
            f"{run['slope']:.2f}±{2.0 * run['slope_se']:.2f}",
            f"{run['predicted_slope']:.2f}",
            f"{run['final_bound']:.0e}",
            run["verdict"],
            end_section=run["alpha"] == ALPHAS[-1],
        )
    console.print(shown)
    levels = ", ".join(f"{r['recent']:.2f} ({r['level']:.2f})" for r in runs if "level" in r)
    informative = ", ".join(
        (f"N = {run['bound_below_G2_from']:.0e}" if run["bound_below_G2_from"] else "N > 1e+18")
        + f" ({run['optimizer']})"
        for run in runs
        if run["alpha"] == 0.5
    )
    console.print(
        f"measured: mean of {summary['replicas']} replicas, 95 % interval. slope: over N ≥ "
        f"{runs[0]['fitted_from']}, ± 2 standard errors. theory: slope of the rate, with its "
        "logarithms. α = 0 minimises a biased objective, at whose minima ‖∇V‖² is not 0: ‖∇V‖² of "
        f"the latest iterates (and its exact value there) is {levels}.\n"
        f"The bound has explicit constants and is large: without a theorem, ‖∇V‖² ≤ G² = "
        f"{summary['constants']['G'] ** 2:.3g}. For α = 0.5 it falls below G² at {informative}."
    )
