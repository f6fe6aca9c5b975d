"""The tables of `boltzmann`: on the terminal within 80 columns, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from mlmcgrad.experiments.boltzmann.findings import ITERATES
from mlmcgrad.experiments.boltzmann.settings import LABELS, REFERENCES

_TITLES = {
    "bars": "Bars and stripes: log-likelihood of 32 rows",
    "digits": "Digits: log-likelihood of a row",
}
_COLUMNS = ("method", "steps", "last", "averaged", "MLMC − it", "equal steps")
_WIDE = (*_COLUMNS, "equal steps, averaged", "ms")  # where there is room
_NOTE = (
    "Mean over seeds ± half of its 95 % interval. steps: Gibbs steps a chain and iteration, both "
    "chains of UCD. averaged: of the averaged iterate. MLMC − it: paired difference of the last "
    "iterates after the same iterations; equal steps: where both have made as many Gibbs steps. "
    "The average of 128 steps and the exact gradient are there to show what more work, or the "
    "truth, would give."
)
_MORE = (
    "equal steps, averaged: the same of the averaged iterates. ms: processor time of an iteration."
)


def show(summary: dict[str, Any], console: Console) -> None:
    """Print a table for each data set."""
    for name, found in summary["data"].items():
        table = Table(title=_title(name, found))
        for column in _COLUMNS:
            table.add_column(column, justify="left" if column == "method" else "right")
        for method, cells in _rows(found):
            table.add_row(*cells[: len(_COLUMNS)], end_section=method == _last_of_comparison())
        console.print(table)
    console.print(_NOTE)


def markdown(summary: dict[str, Any]) -> str:
    """The same tables in Markdown."""
    lines = []
    for name, found in summary["data"].items():
        lines += [f"**{_title(name, found)}**", "", f"| {' | '.join(_WIDE)} |"]
        lines.append(f"|---|{'---:|' * (len(_WIDE) - 1)}")
        lines += [f"| {' | '.join(cells)} |" for _, cells in _rows(found)]
        lines.append("")
    return "\n".join([*lines, f"{_NOTE} {_MORE}", ""])


def _title(name: str, found: dict[str, Any]) -> str:
    return f"{_TITLES[name]}, {found['iterations']} iterations, at most {found['ceiling']:.1f}"


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for method, label in LABELS.items():
        numbers = found["methods"][method]
        differences = found["differences"].get(method, {})
        last, averaged = (differences.get(iterate, {}) for iterate in ITERATES)
        digits = 1 if found["unit"] > 1 else 2
        yield (
            method,
            [
                label,
                f"{numbers['steps_an_iteration']:.1f}" if method != "exact" else "–",
                _value(numbers["last"], digits),
                _value(numbers["averaged"], digits),
                _value(last.get("iterations"), digits),
                _value(last.get("steps"), digits),
                _value(averaged.get("steps"), digits),
                f"{1e3 * numbers['seconds_an_iteration']:.1f}",
            ],
        )


def _value(found: dict[str, Any] | None, digits: int) -> str:
    """A mean and half of its interval."""
    if found is None:
        return "–"
    low, high = found["interval"]
    mean = f"{found['mean']:.{digits}f}"
    return mean if low is None else f"{mean}±{(high - low) / 2.0:.{digits}f}"


def _last_of_comparison() -> str:
    return [method for method in LABELS if method not in REFERENCES][-1]
