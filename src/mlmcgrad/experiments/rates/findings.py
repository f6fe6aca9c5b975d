"""Theorems 1 to 3 in numbers: E‖∇V(θ_R)‖² against N, the predicted rate and the bound.

Three questions about each run, answered in its `verdict`:

- Is the evaluated bound above the measured value for every N?
- Does a growing T_n reach the predicted slope, or a steeper one? The slope is fitted in log-log
  over the last decade of N; its standard error is a jackknife over groups of replicas.
  `predicted_slope` is that of N^exponent (log N)^log_power over the same N: the logarithm counts.
- Does a constant T level off at its bias? It minimises a biased V_t, and the value of ‖∇V‖² at the
  minima of V_t is known.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmcgrad import theory
from mlmcgrad.diagnostics.slopes import fit_power
from mlmcgrad.experiments.folder import Findings
from mlmcgrad.experiments.rates import predictions

_GROUPS = 8
_FLAT = 0.1  # a curve of this slope or less over a decade has levelled off
_NEAR = 0.15  # and its latest iterates are this close, relatively, to the level of its bias


def summarise(results: dict[str, Any]) -> Findings:
    """One row for each run and N; one entry of the summary for each run."""
    problem, constants = predictions.constants()
    rows, runs = [], []
    for result in results.values():
        lines = _lines(result, problem)
        rows += lines
        runs.append(_summary(result, lines, problem))
    judge(runs)
    replicas = len(next(iter(results.values()))["values"][0])
    return Findings(rows, {"constants": constants, "replicas": replicas, "runs": runs})


def fit(N: list[int], values: NDArray[np.float64]) -> tuple[float, float]:
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
        [fit_power(x, np.delete(y, group, axis=1).mean(1).tolist()).slope for group in groups]
    )
    error = math.sqrt((_GROUPS - 1) * float(without.var()))
    return fit_power(x, y.mean(1).tolist()).slope, error


def judge(runs: list[dict[str, Any]]) -> None:
    """Add to every run whether it does what the theory says."""
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


def _lines(result: dict[str, Any], problem: theory.Problem) -> list[dict[str, Any]]:
    """One row for each N: measured, bound, terms."""
    name, alpha, values = result["optimizer"], result["alpha"], np.array(result["values"])
    bound = predictions.bound(name, alpha, result["N"], problem)
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
    result: dict[str, Any], lines: list[dict[str, Any]], problem: theory.Problem
) -> dict[str, Any]:
    name, alpha, N = result["optimizer"], result["alpha"], result["N"]
    slope, error = fit(N, np.array(result["values"]))
    order = predictions.rate(name, alpha)
    decade = [N[i] for i in _last_decade(N)]
    final, half = lines[-1]["measured"], 1.96 * lines[-1]["standard_error"]
    summary = {
        "optimizer": name,
        "alpha": alpha,
        "slope": slope,
        "slope_se": error,
        "predicted_slope": fit_power(decade, predictions.shape(decade, order)).slope,
        "predicted_exponent": order.exponent,
        "log_power": order.log_power,
        "bound_holds": all(line["bound"] >= line["measured"] for line in lines),
        "fitted_from": decade[0],
        "N": N[-1],
        "final": final,
        "final_interval": [final - half, final + half],
        "final_bound": lines[-1]["bound"],
        "bound_below_G2_from": predictions.informative_from(name, alpha, problem),
        "transitions": result["transitions"],
    }
    if result["level"] is not None:
        summary |= {"level": float(np.mean(result["level"])), "recent": lines[-1]["recent"]}
    return summary


def _last_decade(N: list[int]) -> list[int]:
    """Positions in the grid that the slope is fitted over."""
    return [i for i, n in enumerate(N) if 10 * n >= N[-1]]
