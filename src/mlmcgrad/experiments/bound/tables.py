"""The tables of `bound`, within 80 columns."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mlmcgrad.experiments.bound.findings import PER_DECADE
from mlmcgrad.experiments.folder import Findings


def order(exponent: float, log_power: float) -> str:
    """N^exponent (log N)^log_power as text.

    Example:
        >>> order(-0.5, 2.0), order(0.0, 0.0)
        ('N^-0.5 log^2 N', 'constant')
    """
    parts = [f"N^{exponent:g}"] if exponent else []
    parts += [f"log^{log_power:g} N" if log_power != 1 else "log N"] if log_power else []
    return " ".join(parts) or "constant"


def show(findings: Findings, console: Console) -> None:
    """Print constants, the terms of the bound for powers of ten, the rate and the plan."""
    rows, summary = findings.rows, findings.summary
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}
    constants = Table(title="Constants", **style)
    values = list(summary["constants"].items())
    for _ in range(3):
        constants.add_column("name")
        constants.add_column("value", justify="right")
    for i in range(0, len(values), 3):
        pairs = [(name.replace("_", " "), f"{value:.6g}") for name, value in values[i : i + 3]]
        constants.add_row(*(cell for pair in pairs for cell in pair))
    console.print(constants)

    rate, names = summary["rate"], list(rows[0]["terms"])
    table = Table(title=f"Bound of E‖∇V(θ_R)‖², {summary['optimizer']}", **style)
    for name in ("N", *names, "total"):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows[::PER_DECADE]:
        terms = [f"{row['terms'][name]:.1e}" for name in names]
        table.add_row(f"{row['N']:.0e}", *terms, f"{row['total']:.1e}")
    table.add_section()
    orders = [order(*rate["terms"][name]) if name in rate["terms"] else "0" for name in names]
    table.add_row("rate", *orders, order(rate["exponent"], rate["log_power"]))
    console.print(table)
    slowest = ", ".join(name.replace("_", " ") for name in rate["dominant"])
    console.print(
        f"Slowest for large N: {slowest}. No theorem is needed for ‖∇V‖² ≤ G² = "
        f"{summary['constants']['G'] ** 2:.3g}."
    )
    if "plan" in summary:
        _print_plan(summary, console)


def _print_plan(summary: dict[str, Any], console: Console) -> None:
    plan = summary["plan"]
    if plan is None:
        console.print(summary["plan_missing"])
        return
    (c, _), (C, alpha) = plan["gamma"], plan["truncation"]
    console.print(
        f"For a bound of {plan['accuracy']:g}: γ_n = {c:.3g} n^-0.5, T_n = {C:g} n^{alpha:g}, "
        f"N = {plan['iterations']:.3g} iterations, {plan['cost']:.3g} chain steps on average "
        f"(the longest chain {plan['longest_chain']:.3g}); plain averages with the same bias "
        f"would take {plan['average_cost']:.3g}, {plan['saving']:.3g} times as many."
    )
