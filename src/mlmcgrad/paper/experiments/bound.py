"""Theorems 1 to 3 for given numbers: constants, the terms of the bound at many N, rates.

Nothing is simulated: the numbers are those of `mlmcgrad.theory`. With a target for the bound,
`theory.recommend` gives the schedules and the number of iterations that reach it.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from mlmcgrad import theory
from mlmcgrad.paper.experiments.folder import Findings, replaced
from mlmcgrad.paper.experiments.plots import COLOURS, CYCLE, log_axes, panels, print_path
from mlmcgrad.paper.experiments.settings import BoundSettings, Preset
from mlmcgrad.paper.runs import folder as records
from mlmcgrad.schedules import power

_PER_DECADE = 4  # values of N for each power of ten
# The largest power of ten among the N; the smallest is 2.
_HIGHEST: dict[Preset, int] = {"smoke": 4, "quick": 10, "full": 15}
_STATES = 1024  # largest matrix: computing its powers takes many minutes


def run(settings: BoundSettings, console: Console) -> dict[str, Any]:
    """Evaluate the bound, write the run folder, draw and print; returns the summary."""
    findings = evaluate(settings)  # refuses bad settings before a file is written
    with replaced(settings, settings.out):
        findings.write(settings.out)
        _show(findings, console)
        print_path(draw(settings.out, findings), console)
    return findings.summary


def evaluate(settings: BoundSettings) -> Findings:
    """Return one row per N with the terms of the bound; the summary has constants and rate.

    Raises:
        ValueError: a setting is out of its range, or so far from 1 that the bound overflows; the
            message names it.
    """
    try:
        with np.errstate(all="ignore"):
            findings = _evaluate(settings)
    except (OverflowError, ZeroDivisionError) as error:
        raise _overflow(settings) from error
    numbers = [row["total"] for row in findings.rows] + [*findings.summary["constants"].values()]
    if not all(map(math.isfinite, numbers)):
        raise _overflow(settings)
    return findings


def _evaluate(settings: BoundSettings) -> Findings:
    chain = _ergodicity(settings)
    problem = theory.Assumptions(
        theory.constants(settings.dimension, chain), G=settings.G, L=settings.L, gap=settings.gap
    )
    method: theory.Method = "general" if settings.optimizer == "sgd" else settings.optimizer
    options: dict[str, Any] = {}
    if settings.optimizer == "adagrad":
        options = {"epsilon": settings.epsilon, "clip": settings.clip}
    elif settings.optimizer == "amsgrad":
        names = ("rho1", "rho2", "delta", "clip", "as_printed")
        options = {name: getattr(settings, name) for name in names}
    steps = _PER_DECADE * (_HIGHEST[settings.preset] - 2)
    N = [round(10 ** (2 + i / _PER_DECADE)) for i in range(steps + 1)]
    bound: theory.Bound = getattr(theory.bounds, method)(
        N,
        problem,
        gamma=power(settings.gamma_scale, -settings.gamma_exponent),
        truncation=power(settings.truncation_scale, settings.truncation_exponent),
        **options,
    )
    rate: theory.Rate = getattr(theory.rates, method)(
        settings.gamma_exponent, settings.truncation_exponent, as_printed=settings.as_printed
    )
    rows = [
        {
            "N": n,
            "terms": {name: float(values[i]) for name, values in bound.terms.items()},
            "total": float(bound.total[i]),
        }
        for i, n in enumerate(N)
    ]
    summary: dict[str, Any] = {
        "optimizer": settings.optimizer,
        "constants": _constants(settings, problem, chain),
        "rate": records.as_record(rate),
        "bound": {str(row["N"]): row["total"] for row in rows},
    }
    if settings.accuracy is not None:
        summary |= _recommend(settings.accuracy, problem, method, options)
    return Findings(rows, summary)


def _overflow(settings: BoundSettings) -> ValueError:
    """Return an error that names the constant furthest from 1."""
    values = {
        name: value
        for name, value in vars(settings).items()
        if isinstance(value, (int, float)) and value > 0 and "exponent" not in name
    }
    name = max(values, key=lambda name: abs(math.log10(values[name])))
    return ValueError(
        f"{name} must be closer to 1, got {values[name]:g}: the bound is beyond the range of "
        "double precision; choose other units, or other constants"
    )


def _ergodicity(settings: BoundSettings) -> theory.Ergodicity:
    if settings.matrix is None:
        return theory.Ergodicity(zeta=settings.zeta, alpha=settings.alpha, beta=settings.beta)
    try:
        return theory.ergodicity(read_matrix(settings.matrix))
    except (OSError, ValueError) as error:
        raise ValueError(f"matrix: cannot use {settings.matrix}: {error}") from error


def read_matrix(path: Path) -> NDArray[np.float64]:
    """Read a square matrix: one row per line, numbers separated by spaces, commas or semicolons.

    Empty lines and comments (from # to the end of a line) are skipped.
    """
    text = path.read_text(encoding="utf-8-sig")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty file is refused below
        rows = np.loadtxt(re.sub("[,;]", " ", text).splitlines(), ndmin=2)
    if rows.shape[0] != rows.shape[1] or not 1 <= len(rows) <= _STATES:
        raise ValueError(
            f"it must hold a square matrix of at most {_STATES} rows, got {len(rows)} rows of "
            f"{rows.shape[1]} numbers"
        )
    return rows


def _constants(
    settings: BoundSettings, problem: theory.Assumptions, chain: theory.Ergodicity
) -> dict[str, float]:
    constants = {"G": problem.G, "L": problem.L, "gap": problem.gap}
    constants |= {"zeta": chain.zeta, "alpha": chain.alpha, "beta": chain.beta}
    constants |= dataclasses.asdict(problem.constants)
    if chain.mixing_time is not None:
        constants["mixing_time"] = chain.mixing_time
    if settings.optimizer == "amsgrad":
        coefficients = theory.amsgrad_coefficients(
            problem,
            gamma_1=settings.gamma_scale,
            truncation_1=settings.truncation_scale,
            rho1=settings.rho1,
            delta=settings.delta,
            as_printed=settings.as_printed,
        )
        constants |= dataclasses.asdict(coefficients)
    return constants


def _recommend(
    accuracy: float, problem: theory.Assumptions, method: theory.Method, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the schedules and the cost that reach the accuracy, or why none do."""
    try:
        found = theory.recommend(accuracy, problem, method, **options)
    except theory.UnreachableError as error:
        return {"recommendation": None, "unreachable": str(error)}
    return {"recommendation": {**records.as_record(found), "saving": found.saving}}


def _order(exponent: float, log_power: float) -> str:
    """Format N^exponent (log N)^log_power as text.

    Example:
        >>> _order(-0.5, 2.0), _order(0.0, 0.0)
        ('N^-0.5 log^2 N', 'constant')
    """
    parts = [f"N^{exponent:g}"] if exponent else []
    parts += [f"log^{log_power:g} N" if log_power != 1 else "log N"] if log_power else []
    return " ".join(parts) or "constant"


def draw(folder: Path, findings: Findings) -> Path:
    """Draw the terms of the bound against N, their sum and the rate."""
    rows, rate = findings.rows, findings.summary["rate"]
    N, total = [row["N"] for row in rows], [row["total"] for row in rows]
    with panels(1, folder / "bound") as (figure, (axes,)):
        figure.set_size_inches(7.6, 4.8)
        # Wide and pale, below the others: the largest term often lies right on it.
        axes.plot(N, total, color=COLOURS["theory"], lw=5.0, alpha=0.3, label="bound, the sum")
        for name, colour in zip(rows[0]["terms"], CYCLE, strict=False):
            y = [row["terms"][name] for row in rows]
            if min(y) > 0.0:  # a gap of 0 has no place on a logarithmic axis
                axes.plot(N, y, color=colour, lw=1.5, label=name.replace("_", " "))
        shape = [n ** rate["exponent"] * math.log(n) ** rate["log_power"] for n in N]
        above = [1.6 * total[-1] / shape[-1] * value for value in shape]
        label = f"rate: {_order(rate['exponent'], rate['log_power'])} (moved up)"
        axes.plot(N, above, "--", color=COLOURS["theory"], lw=1.2, label=label)
        axes.set(xlabel="iterations N", ylabel="bound of E‖∇V(θ_R)‖²")
        log_axes(axes)
        axes.set_title(f"Terms of the bound ({findings.summary['optimizer']})")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return folder / "bound.png"


def _show(findings: Findings, console: Console) -> None:
    """Print constants, the terms of the bound for powers of ten, the rate and the schedules."""
    rows, summary = findings.rows, findings.summary
    constants = [f"{k.replace('_', ' ')} = {v:.6g}" for k, v in summary["constants"].items()]
    console.print("Constants:", ", ".join(constants))
    rate, names = summary["rate"], list(rows[0]["terms"])
    title = f"Bound of E‖∇V(θ_R)‖², {summary['optimizer']}"
    terms = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("N", *names, "total"):
        terms.add_column(name.replace("_", " "), justify="right")
    for row in rows[::_PER_DECADE]:
        cells = [f"{row['terms'][name]:.1e}" for name in names]
        terms.add_row(f"{row['N']:.0e}", *cells, f"{row['total']:.1e}")
    terms.add_section()
    orders = [_order(*rate["terms"][name]) if name in rate["terms"] else "0" for name in names]
    terms.add_row("rate", *orders, _order(rate["exponent"], rate["log_power"]))
    console.print(terms)
    slowest = ", ".join(name.replace("_", " ") for name in rate["dominant"])
    console.print(
        f"Slowest for large N: {slowest}. Without a theorem, ‖∇V‖² ≤ G² = "
        f"{summary['constants']['G'] ** 2:.3g}."
    )
    if "recommendation" not in summary:
        return
    if (found := summary["recommendation"]) is None:
        console.print(summary["unreachable"])
        return
    gamma, truncation = found["gamma"]["c"], found["truncation"]
    console.print(
        f"For a bound of {found['accuracy']:g}: γ_n = {gamma:.3g} n^-0.5, T_n = "
        f"{truncation['c']:g} n^{truncation['exponent']:g}, N = {found['iterations']:.3g} "
        f"iterations, {found['expected_cost']:.3g} chain steps on average "
        f"(the longest chain {found['longest_chain']:.3g}). Plain averages with the same bias "
        f"would take {found['average_cost']:.3g} steps, {found['saving']:.3g} times as many."
    )
