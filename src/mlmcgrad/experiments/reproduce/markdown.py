"""The findings as Markdown, for places that show no HTML: `claims.md` beside the report."""

from __future__ import annotations

from collections.abc import Sequence

from mlmcgrad.experiments.reproduce import tables
from mlmcgrad.experiments.reproduce.findings import Findings
from mlmcgrad.experiments.reproduce.gather import LABELS, OPTIMIZERS
from mlmcgrad.experiments.reproduce.sentences import measured, statement, takeaways
from mlmcgrad.experiments.reproduce.text import duration, number


def page(findings: Sequence[Findings]) -> str:
    """What was found by each reproduction, with where it comes from, its tables and notes."""
    return "\n\n".join(map(_part, findings)) + "\n"


def _part(findings: Findings) -> str:
    about = findings.about
    origin = (
        f"`{about.get('command', '')}`, {duration(about.get('seconds'))} on "
        f"{about.get('cores', '?')} cores, commit {about.get('commit') or 'unknown'}."
    )
    notes = [
        f"- {measured(claim)}, {OPTIMIZERS[claim.optimizer]}: {note}"
        for claim, note in tables.notes(findings).items()
    ]
    parts = [
        f"# Claims on {findings.name}",
        " ".join(filter(None, (origin, about.get("note")))),
        "\n".join(f"- {sentence}" for sentence in takeaways(findings)),
        "Mean over seeds, 95 % interval over seeds, verdict.",
        *_groups(findings),
        *_costs(findings),
        "\n".join(notes),
    ]
    return "\n\n".join(filter(None, parts))


def _groups(findings: Findings) -> list[str]:
    """A table under each sentence: a row for each claim, a column for each optimizer."""
    optimizers = tables.optimizers(findings)
    head = ["measured", *(OPTIMIZERS[name] for name in optimizers)]
    parts = []
    for sentence, rows in tables.claim_groups(findings.claims).items():
        checked = " ".join(map(statement, rows))
        parts.append(f"**“{sentence}”** Checked: {checked}" if sentence else "**Beyond the paper**")
        lines = [head, ["---"] * len(head)]
        for subject, claims in rows.items():
            cells = [tables.value(claims[o]) if o in claims else "" for o in optimizers]
            lines.append([measured(subject), *cells])
        parts.append("\n".join(map(_line, lines)))
    return parts


def _costs(findings: Findings) -> list[str]:
    """What evaluations leave out, and what each method costs with it."""
    if not findings.diagnostics:
        return []
    text = (
        "**Decoder passes** of an iteration for each image, at the last iterations that all "
        "methods made. Evaluations decode a draw to weigh it, and are what budgets count; states "
        "that keep a weight are decoded again, with their gradient, which budgets leave out. The "
        "last two columns are ratios to BR-IWAE, as budgets count and with the second decoding."
    )
    head = ["method", "optimizer", "evaluations", "decoded again", "ratio", "ratio with it"]
    lines = [head, ["---"] * len(head)]
    for row, shares in tables.shares(findings).items():
        cells = map(number, (row.evaluations, row.decoded_again, *shares))
        lines.append([LABELS[row.method], OPTIMIZERS[row.optimizer], *cells])
    return [text, "\n".join(map(_line, lines))]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
