"""The theorems for given numbers: constants, the terms of the bound at many N, rates, a plan.

Nothing is random here: the numbers come from `mlmcgrad.theory`, this file reads the settings, and
writes and prints what it says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from mlmcgrad import theory
from mlmcgrad.experiments.bound import tables as bound_table
from mlmcgrad.experiments.bound.matrix_file import read_matrix
from mlmcgrad.experiments.bound.settings import Bound
from mlmcgrad.experiments.bound.tables import PER_DECADE, order
from mlmcgrad.experiments.plots import COLOURS, panels
from mlmcgrad.runs import folder as records
from mlmcgrad.schedules import power
from mlmcgrad.theory import bounds, rates
from mlmcgrad.theory.recommendation import Method

_BOUNDS: dict[str, Callable[..., theory.Bound]] = {
    "sgd": bounds.general,
    "adagrad": bounds.adagrad,
    "amsgrad": bounds.amsgrad,
}
_RATES: dict[str, Callable[..., theory.Rate]] = {
    "sgd": rates.general,
    "adagrad": rates.adagrad,
    "amsgrad": rates.amsgrad,
}
# The largest power of ten among the N.
PRESETS = {"smoke": 4, "quick": 10, "full": 15}
_TERM_COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")


def run(config: Bound, console: Console | None = None) -> dict[str, Any]:
    """Compute, write the run folder, draw and print."""
    console = console or Console()
    # Everything that can be wrong with the settings comes up before a file is written.
    chain = _ergodicity(config)
    problem = theory.Problem(
        theory.constants(config.dimension, chain), G=config.G, L=config.L, gap=config.gap
    )
    steps = PER_DECADE * (PRESETS[config.preset] - 2)
    N = [round(10 ** (2 + i / PER_DECADE)) for i in range(steps + 1)]
    found, rate = _bound(config, problem, N), _rate(config)
    summary: dict[str, Any] = {
        "optimizer": config.optimizer,
        "constants": _constants(config, problem, chain),
        "rate": {
            "exponent": rate.exponent,
            "log_power": rate.log_power,
            "dominant": list(rate.dominant),
            "terms": {name: list(order) for name, order in rate.terms.items()},
        },
        "bound": {str(n): float(t) for n, t in zip(N, found.total, strict=True)},
        **_plan(config, problem),
    }
    lines = [
        {
            "N": n,
            "terms": {name: float(array[i]) for name, array in found.terms.items()},
            "total": float(found.total[i]),
        }
        for i, n in enumerate(N)
    ]
    records.write_config(config.folder, config)
    records.write_lines(config.folder / records.METRICS, lines)
    records.write_json(config.folder / records.SUMMARY, summary)
    draw(config.folder)
    bound_table.show(summary, lines, console)
    console.print(f"figure: {config.folder / 'bound.png'}", style="bold", highlight=False)
    return summary


def draw(folder: Path) -> None:
    """Draw the figure from what is in the run folder."""
    lines = records.read_lines(folder / records.METRICS)
    summary = records.read_json(folder / records.SUMMARY)
    rate, N = summary["rate"], [line["N"] for line in lines]
    with panels(1, folder / "bound") as (figure, (axes,)):
        figure.set_size_inches(7.6, 4.8)
        total = [line["total"] for line in lines]
        # Wide and pale, below the others: the largest term often lies right on it.
        axes.plot(N, total, color=COLOURS["theory"], lw=5.0, alpha=0.3, label="bound, the sum")
        for name, colour in zip(lines[0]["terms"], _TERM_COLOURS, strict=False):
            y = [line["terms"][name] for line in lines]
            if min(y) > 0.0:  # a gap of 0 has no place on a logarithmic axis
                axes.plot(N, y, color=colour, lw=1.5, label=name.replace("_", " "))
        predicted = [n ** rate["exponent"] * math.log(n) ** rate["log_power"] for n in N]
        scale = total[-1] / predicted[-1]
        label = f"rate: {order(rate['exponent'], rate['log_power'])} (moved up)"
        axes.plot(
            N,
            [1.6 * scale * p for p in predicted],
            "--",
            color=COLOURS["theory"],
            lw=1.2,
            label=label,
        )
        axes.set(
            xlabel="iterations N",
            ylabel="bound of E‖∇V(θ_R)‖²",
            title=f"Terms of the bound ({summary['optimizer']})",
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _ergodicity(config: Bound) -> theory.Ergodicity:
    if config.matrix is None:
        return theory.Ergodicity(config.zeta, config.alpha, config.beta)
    rows = read_matrix(config.matrix)
    try:
        return theory.ergodicity(rows)
    except ValueError as error:
        raise ValueError(f"matrix: {config.matrix}: {error}") from error


def _bound(config: Bound, problem: theory.Problem, N: list[int]) -> theory.Bound:
    schedules = {
        "gamma": power(config.gamma_scale, -config.gamma_exponent),
        "truncation": power(config.truncation_scale, config.truncation_exponent),
    }
    return _BOUNDS[config.optimizer](N, problem, **schedules, **_settings(config))


def _settings(config: Bound) -> dict[str, Any]:
    """What the optimizer's theorem takes beside the schedules."""
    if config.optimizer == "adagrad":
        return {"epsilon": config.epsilon, "clip": config.clip}
    if config.optimizer == "amsgrad":
        names = ("rho1", "rho2", "delta", "clip", "as_printed")
        return {name: getattr(config, name) for name in names}
    return {}


def _rate(config: Bound) -> theory.Rate:
    return _RATES[config.optimizer](
        config.gamma_exponent, config.truncation_exponent, as_printed=config.as_printed
    )


def _constants(
    config: Bound, problem: theory.Problem, chain: theory.Ergodicity
) -> dict[str, float]:
    c = problem.constants
    found = {
        "d": c.d,
        "G": config.G,
        "L": config.L,
        "gap": config.gap,
        "zeta": chain.zeta,
        "alpha": chain.alpha,
        "beta": chain.beta,
        "c1": c.c1,
        "c2": c.c2,
        "c3": c.c3,
    }
    if chain.mixing_time is not None:
        found["mixing_time"] = chain.mixing_time
    if config.optimizer == "amsgrad":
        b = theory.amsgrad_coefficients(
            problem,
            gamma_1=config.gamma_scale,
            truncation_1=config.truncation_scale,
            rho1=config.rho1,
            delta=config.delta,
            as_printed=config.as_printed,
        )
        found |= dataclasses.asdict(b)
    return found


def _plan(config: Bound, problem: theory.Problem) -> dict[str, Any]:
    """What reaches the accuracy, or why nothing does; empty if none is wanted."""
    if config.accuracy is None:
        return {}
    method: Method = "general" if config.optimizer == "sgd" else config.optimizer
    try:
        plan = theory.recommend(config.accuracy, problem, method, **_settings(config))
    except ValueError as error:
        if "is not reached" not in str(error):
            raise
        return {"plan": None, "plan_missing": str(error)}
    return {
        "plan": {
            "accuracy": plan.accuracy,
            "gamma": [plan.gamma.c, plan.gamma.exponent],
            "truncation": [plan.truncation.c, plan.truncation.exponent],
            "iterations": plan.iterations,
            "bound": plan.bound,
            "cost": plan.expected_cost,
            "longest_chain": plan.longest_chain,
            "average_cost": plan.average_cost,
            "saving": plan.saving,
        }
    }


__all__ = ["PRESETS", "draw", "run"]
