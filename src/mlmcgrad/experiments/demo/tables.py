"""The table of `demo`, within 80 columns."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from mlmcgrad.experiments.demo.settings import Demo


def show(methods: list[dict[str, Any]], settings: Demo, console: Console) -> None:
    """Print one line for each method, and what to see in it."""
    table = Table(title="A gradient whose exact value is known (8-state chain)")
    for name in ("method", "bias", "exact", "std. dev.", "cost", "small", "large"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in methods:
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
    cost = {row["method"]: row["cost"] for row in methods}
    best_small = min(methods, key=lambda row: row["final_small"])["label"]
    best_large = min(methods, key=lambda row: row["final_large"])["label"]
    console.print(
        "bias, std. dev., cost (transitions): of one estimate by one chain. small, large: "
        f"V − min V after training with small and with large steps for {settings.budget} "
        "transitions per chain.\n"
        f"MLMC has the bias of the average of {settings.truncation} steps at "
        f"{cost['mlmc'] / cost['average']:.0%} of its cost, and more variance. Small steps, "
        f"many iterations: best is {best_small!r}. Large steps, few iterations: best is "
        f"{best_large!r}."
    )
