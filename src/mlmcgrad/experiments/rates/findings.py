"""Theorems 1 to 3 in numbers: E‖∇V(θ_R)‖² against N, beside the predicted rate and the bound.

The problem is non-convex with a known gradient (problems/sticky.py), γ_n = c n^{-1/2} and
T_n = 2 n^α for α ∈ {0, 1/4, 1/2, 1}, with plain stochastic gradient, Adagrad and AMSGrad. Three
questions to each run, answered in its `verdict`:

- Is the evaluated bound above the measured value for every N?
- Does a growing T_n reach the predicted slope, or a steeper one? The slope is fitted in log-log
  over the last decade of N; its standard error is a jackknife over groups of replicas.
  `predicted_slope` is that of N^exponent (log N)^log_power over the same N: the logarithm counts.
- Does a constant T level off at its bias? It minimises a biased V_t, and what is left of ‖∇V‖² at
  the minima of V_t is known.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mlmcgrad.experiments.rates import figures as rates_plot
from mlmcgrad.experiments.rates import predictions as rates_theory
from mlmcgrad.experiments.rates import run as rates_run
from mlmcgrad.experiments.rates.run import ALPHAS, OPTIMIZERS, Name
from mlmcgrad.experiments.rates.settings import Rates
from mlmcgrad.runs import folder as records
from mlmcgrad.runs import pool as parallel

# (largest N, replicas)
PRESETS = {"smoke": (60, 16), "quick": (15_000, 128), "full": (200_000, 256)}
_GROUPS = 8
_FLAT = 0.1  # a curve of this slope or less over a decade has levelled off
_NEAR = 0.15  # and its latest iterates are this near, relatively, to the level of its bias

Array = NDArray[np.float64]


def run(config: Rates, console: Console | None = None) -> dict[str, Any]:
    """Train, compare with the theory, write the run folder, draw and print."""
    console = console or Console()
    records.write_config(config.folder, config)
    iterations, replicas = PRESETS[config.preset]
    common = {"iterations": iterations, "replicas": replicas, "seed": config.seed}
    pairs = [(name, alpha) for name in OPTIMIZERS for alpha in ALPHAS]
    arguments = {
        _part(*pair): {"optimizer": pair[0], "alpha": pair[1], "stream": stream, **common}
        for stream, pair in enumerate(pairs)
    }
    results = parallel.run_parts(rates_run.train, arguments, config.folder, config.jobs, console)
    setting = rates_theory.setting()
    lines, runs = [], []
    for name, alpha in pairs:
        result = results[_part(name, alpha)]
        rows = _lines(name, alpha, result, setting)
        lines += rows
        runs.append(_summary(name, alpha, result, rows, setting))
    _judge(runs)
    summary = {"constants": setting.record(), "replicas": replicas, "runs": runs}
    records.write_lines(config.folder / records.METRICS, lines)
    records.write_json(config.folder / records.SUMMARY, summary)
    draw(config.folder)
    parallel.forget(config.folder)
    _print(summary, config.folder, console)
    return summary


def draw(folder: Path) -> None:
    """Draw the figure from what is in the run folder."""
    rates_plot.draw(folder)


def fit(N: list[int], values: Array) -> tuple[float, float]:
    """Slope of the mean over replicas over the last decade of N, and its standard error.

    Args:
        N: the grid.
        values: (N, replicas); the replicas are independent.

    Returns:
        The slope, and its delete-one-group jackknife standard error.
    """
    chosen = _last_decade(N)
    x, y = [N[i] for i in chosen], values[chosen]
    groups = np.array_split(np.arange(y.shape[1]), _GROUPS)
    without = np.array(
        [rates_theory.slope(x, np.delete(y, group, axis=1).mean(1).tolist()) for group in groups]
    )
    error = math.sqrt((_GROUPS - 1) * float(without.var()))
    return rates_theory.slope(x, y.mean(1).tolist()), error


def _part(name: Name, alpha: float) -> str:
    return f"{name} α={alpha:g}"


def _lines(
    name: Name, alpha: float, result: dict[str, Any], setting: rates_theory.Setting
) -> list[dict[str, Any]]:
    """One record for each N: measured, bound, terms."""
    values = np.array(result["values"])
    bound = rates_theory.bound(name, alpha, result["N"], setting.problem)
    errors = values.std(1, ddof=1) / math.sqrt(values.shape[1])
    sums = np.array(result["weights"])
    # The same average over the iterates since the N before, without what came earlier.
    recent = np.diff(values.mean(1) * sums, prepend=0.0) / np.diff(sums, prepend=0.0)
    return [
        {
            "optimizer": name,
            "alpha": alpha,
            "N": N,
            "measured": float(values[i].mean()),
            "standard_error": float(errors[i]),
            "recent": float(recent[i]),
            "bound": float(bound.total[i]),
            "terms": {term: float(array[i]) for term, array in bound.terms.items()},
        }
        for i, N in enumerate(result["N"])
    ]


def _summary(
    name: Name,
    alpha: float,
    result: dict[str, Any],
    lines: list[dict[str, Any]],
    setting: rates_theory.Setting,
) -> dict[str, Any]:
    N, values = result["N"], np.array(result["values"])
    slope, error = fit(N, values)
    order = rates_theory.rate(name, alpha)
    decade = [N[i] for i in _last_decade(N)]
    last = lines[-1]
    found: dict[str, Any] = {
        "optimizer": name,
        "alpha": alpha,
        "slope": slope,
        "slope_se": error,
        "predicted_slope": rates_theory.slope(decade, rates_theory.shape(decade, order)),
        "predicted_exponent": order.exponent,
        "log_power": order.log_power,
        "bound_holds": all(line["bound"] >= line["measured"] for line in lines),
        "fitted_from": decade[0],
        "N": N[-1],
        "final": last["measured"],
        "final_interval": [
            last["measured"] + side * 1.96 * last["standard_error"] for side in (-1.0, 1.0)
        ],
        "final_bound": last["bound"],
        "bound_below_G2_from": rates_theory.informative_from(name, alpha, setting.problem),
        "transitions": result["transitions"],
    }
    if result["level"] is not None:
        found |= {"level": float(np.mean(result["level"])), "recent": last["recent"]}
    return found


def _judge(runs: list[dict[str, Any]]) -> None:
    """Say of every run whether it does what the theory says."""
    for row in runs:
        if row["alpha"] > 0.0:
            reached = row["slope"] <= row["predicted_slope"] + 2.0 * row["slope_se"]
            verdict = "reached" if reached else "SLOWER"
        else:
            others = (
                r["final_interval"][1]
                for r in runs
                if r["optimizer"] == row["optimizer"] and r["alpha"] >= 0.5
            )
            flat = abs(row["slope"]) <= _FLAT + 2.0 * row["slope_se"]
            near = abs(row["recent"] / row["level"] - 1.0) <= _NEAR
            above = row["final_interval"][0] > max(others)
            verdict = "levels off" if flat and near and above else "NOT LEVEL"
        row["verdict"] = verdict if row["bound_holds"] else f"{verdict}, BOUND FAILS"


def _last_decade(N: list[int]) -> list[int]:
    """Positions in the grid that the slope is fitted over."""
    return [i for i, n in enumerate(N) if 10 * n >= N[-1]]


def _print(summary: dict[str, Any], folder: Path, console: Console) -> None:
    runs = summary["runs"]
    table = Table(title=f"E‖∇V(θ_R)‖² after N = {runs[0]['N']} iterations, T_n = 2 n^α")
    for name in ("optimizer", "α", "measured", "slope", "theory", "bound", "verdict"):
        left = name in ("optimizer", "verdict")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "verdict")
    for row in runs:
        half = row["final_interval"][1] - row["final"]
        table.add_row(
            row["optimizer"] if row["alpha"] == ALPHAS[0] else "",
            f"{row['alpha']:g}",
            f"{row['final']:.4f}±{half:.4f}",
            f"{row['slope']:.2f}±{2.0 * row['slope_se']:.2f}",
            f"{row['predicted_slope']:.2f}",
            f"{row['final_bound']:.0e}",
            row["verdict"],
            end_section=row["alpha"] == ALPHAS[-1],
        )
    console.print(table)
    levels = ", ".join(f"{r['recent']:.2f} for {r['level']:.2f}" for r in runs if "level" in r)
    square = summary["constants"]["G"] ** 2
    informative = ", ".join(
        (f"N = {r['bound_below_G2_from']:.0e}" if r["bound_below_G2_from"] else "N > 1e+18")
        + f" ({r['optimizer']})"
        for r in runs
        if r["alpha"] == 0.5
    )
    console.print(
        f"measured: mean of {summary['replicas']} replicas, 95 % interval. slope: over N ≥ "
        f"{runs[0]['fitted_from']}, ± 2 standard errors; theory: slope of the rate, logarithms "
        f"included. α = 0 minimises a biased objective, and at the minima of that ‖∇V‖² "
        f"is not 0; latest iterates, for exact: {levels}.\n"
        f"The bound has explicit constants and is large: without any theorem, ‖∇V‖² ≤ G² = "
        f"{square:.3g}. For α = 0.5 it is below that from {informative} on."
    )
    console.print(f"figure: {folder / 'rates.png'}", style="bold", highlight=False)


__all__ = ["PRESETS", "draw", "fit", "run"]
