"""Run every benchmark and print one table of ratios; `make bench` calls this.

A ratio is the time of the alternative over ours, median over interleaved pairs with quartiles; rows
that name seconds, or what something costs, should be small instead.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

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
    "estimators",
    "optimizers",
    "overhead",
    "mixed",
    "gibbs",
    "ergm",
    "blackjax_chains",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks and keep the rows of the others, or run all of them."""
    if unknown := set(names) - set(NAMES):
        sys.exit(f"benchmarks must be among {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    path = ROOT / "results.json"
    before = json.loads(path.read_text(encoding="utf-8")) if names else []
    rows = [row for row in before if row["benchmark"] not in names]
    with Progress(transient=True) as progress:
        for name in progress.track(names or NAMES, description="benchmarks"):
            # A process for each: what one leaves behind, such as its heap, must not slow another.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                results = pool.submit(_run, name).result()
            rows += [{"benchmark": name, **result.row()} for result in results]
    rows.sort(key=lambda row: NAMES.index(row["benchmark"]))
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
    table = Table("benchmark", "ratio", "quartiles", "target", "met")
    for row in rows:
        table.add_row("\n".join(filter(None, (row["name"], row["note"]))), *_cells(row))
    Console().print(table)
    return 0


def _run(name: str) -> Any:
    return import_module(f"benchmarks.{name}").run()


def markdown(rows: list[dict[str, Any]]) -> str:
    """The same table for the documentation."""
    lines = ["| benchmark | ratio | quartiles | target | met |", "| --- " * 5 + "|"]
    for row in rows:
        name = f"{row['name']} ({row['note']})" if row["note"] else row["name"]
        *cells, met = _cells(row)
        lines.append(f"| {' | '.join([name, *cells, met if row['met'] else f'**{met}**'])} |")
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    """Ratio, quartiles, target, and whether it was met."""
    return [
        _short(row["ratio"]),
        f"{_short(row['low'])} to {_short(row['high'])}",
        f"{'≤' if row['at_most'] else '≥'} {row['target']:.3g}",
        "yes" if row["met"] else "no",
    ]


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if abs(ratio) >= 0.1 else f"{ratio:.1g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
