"""The table of `scaling`, within 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show(summary: dict[str, Any], console: Console) -> None:
    """Print one line for each kernel, below what theory says."""
    table = Table(title="MLMC against T: measured, and what theory says")
    for name in ("kernel", "bias", "E‖Ĥ‖² in log T", "E‖Ĥ‖³", "cost", "τ", "levels"):
        table.add_column(name, justify="left" if name == "kernel" else "right", no_wrap=True)
    table.add_row("theory", "T^-1", "R² = 1", "≤ T^0.5", "1", "", "< 1", style="dim")
    for name, slope in summary["bias_slope"].items():
        table.add_row(
            name,
            f"T^{slope:.2f} ± {summary['bias_slope_se'][name]:.2f}",
            f"R² = {summary['second_moment_r2'][name]:.4f}",
            f"T^{summary['third_moment_slope'][name]:.2f}",
            f"{summary['cost_ratio'][name]:.3f}",
            f"{summary['autocorrelation_time'][name]:.1f}",
            f"{summary['consistency'][name]:.2f}",
        )
    console.print(table)
    slopes = ", ".join(f"{slope:.2f}" for slope in summary["average_cost_slope"].values())
    console.print(
        "cost: measured over κ + 2^-κ; τ: autocorrelation time; levels: largest consistency "
        f"check of the multilevel test. Cost slopes of the plain average: {slopes}."
    )
