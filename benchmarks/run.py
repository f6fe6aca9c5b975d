"""Run every benchmark and print one table of ratios; `make bench` calls this.

A ratio is the time of the alternative over ours, median over interleaved pairs with quartiles; rows
that name seconds, or what something costs, should be small instead.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent))

NAMES = (
    "mala_gradient",
    "isir_gradient",
    "cost_growth",
    "iwae_br_step",
    "iwae_mlmc_step",
    "iwae_cost",
    "variance",
    "optimizers",
    "overhead",
    "blackjax_chains",
)


def main() -> int:
    rows = []
    with Progress(transient=True) as progress:
        for name in progress.track(NAMES, description="benchmarks"):
            rows += [result.row() for result in import_module(f"benchmarks.{name}").run()]
    (ROOT / "results.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    table = Table("benchmark", "ratio", "quartiles", "target", "met")
    for row in rows:
        table.add_row(
            str(row["name"]),
            f"{row['ratio']:.2f}",
            f"{row['low']:.2f} … {row['high']:.2f}",
            f"{'≤' if row['at_most'] else '≥'} {row['target']:.2f}",
            "yes" if row["met"] else "no",
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
