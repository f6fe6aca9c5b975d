"""The claims table as Markdown, for places that show no HTML: `claims.md` beside the report."""

from __future__ import annotations

from collections.abc import Sequence

from mlmcgrad.experiments.reproduce import tables as report_tables
from mlmcgrad.experiments.reproduce.claims import Claim
from mlmcgrad.experiments.reproduce.gather import OPTIMIZERS, Reproduction


def tables(claims: Sequence[Claim]) -> str:
    """A table under each sentence: a row for each number, a column for each optimizer."""
    present = {claim.optimizer for claim in claims}
    optimizers = [label for name, label in OPTIMIZERS.items() if name in present]
    head = ["measured", *optimizers]
    parts: dict[str, list[str]] = {}
    for group in report_tables.claim_groups(claims):
        cells = {row["optimizer"]: _cell(row) for row in group["rows"]}
        title = f"“{group['paper']}”" if group["paper"] else "Beyond the paper"
        rows = parts.setdefault(title, [_row(head), _row(["---"] * len(head))])
        rows.append(_row([group["measured"], *(cells.get(o, "") for o in optimizers)]))
    return "\n".join(f"**{title}**\n\n" + "\n".join(rows) + "\n" for title, rows in parts.items())


def page(
    names: Sequence[str], reproductions: Sequence[Reproduction], claims: Sequence[Sequence[Claim]]
) -> str:
    """The tables of all reproductions, each with where it comes from and its notes."""
    parts = []
    for name, reproduction, found in zip(names, reproductions, claims, strict=True):
        about = reproduction.about
        lasted = report_tables.duration(about.get("seconds"))
        notes = [f"- {c.id}, {OPTIMIZERS[c.optimizer]}: {c.note}" for c in found if c.note]
        parts.append(
            f"# Claims on {name}\n\n`{about.get('command', '')}`, {lasted} on "
            f"{about.get('cores', '?')} cores, commit {about.get('commit') or 'unknown'}. "
            "Mean over seeds, 95 % interval, verdict.\n\n"
            f"{tables(found)}\n" + "\n".join(notes)
        )
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _cell(row: dict[str, str]) -> str:
    return f"{row['value']} ({row['interval']}) {row['symbol']} {row['verdict']}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


__all__ = ["page", "tables"]
