"""The table of `rates`, within 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from mlmcgrad.experiments.rates.settings import ALPHAS


def show(summary: dict[str, Any], console: Console) -> None:
    """Print one line for each run with its verdict, and how to read it."""
    runs = summary["runs"]
    table = Table(title=f"E‖∇V(θ_R)‖² after N = {runs[0]['N']} iterations, T_n = 2 n^α")
    for name in ("optimizer", "α", "measured", "slope", "theory", "bound", "verdict"):
        left = name in ("optimizer", "verdict")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "verdict")
    for run in runs:
        half = run["final_interval"][1] - run["final"]
        table.add_row(
            run["optimizer"] if run["alpha"] == ALPHAS[0] else "",
            f"{run['alpha']:g}",
            f"{run['final']:.4f}±{half:.4f}",
            f"{run['slope']:.2f}±{2.0 * run['slope_se']:.2f}",
            f"{run['predicted_slope']:.2f}",
            f"{run['final_bound']:.0e}",
            run["verdict"],
            end_section=run["alpha"] == ALPHAS[-1],
        )
    console.print(table)
    levels = ", ".join(f"{r['recent']:.2f} ({r['level']:.2f})" for r in runs if "level" in r)
    informative = ", ".join(
        (f"N = {run['bound_below_G2_from']:.0e}" if run["bound_below_G2_from"] else "N > 1e+18")
        + f" ({run['optimizer']})"
        for run in runs
        if run["alpha"] == 0.5
    )
    console.print(
        f"measured: mean of {summary['replicas']} replicas, 95 % interval. slope: over N ≥ "
        f"{runs[0]['fitted_from']}, ± 2 standard errors; theory: slope of the rate, logarithms "
        f"included. α = 0 minimises a biased objective, at whose minima ‖∇V‖² is not 0; ‖∇V‖² of "
        f"the latest iterates (and the exact level): {levels}.\n"
        f"The bound has explicit constants and is large: without any theorem, ‖∇V‖² ≤ G² = "
        f"{summary['constants']['G'] ** 2:.3g}. For α = 0.5 it falls below that at {informative}."
    )
