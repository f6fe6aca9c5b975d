"""The report of reproductions: `report.html`, `summary.json`, `claims.md` and `figures/`.

    runs → findings → figures, page, Markdown

`mlmcgrad reproduce` ends with it, and `mlmcgrad report` makes it again from the run folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mlmcgrad.experiments.reproduce import figures, markdown, page
from mlmcgrad.experiments.reproduce.findings import Findings, find
from mlmcgrad.experiments.reproduce.gather import Reproduction, gather
from mlmcgrad.experiments.reproduce.settings import Report
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.atomic import write_atomically

REPORT, CLAIMS = "report.html", "claims.md"


def run(config: Report, console: Console) -> Path:
    """Build the report of the named folders; returns the path of the page."""
    out = config.folder
    if out not in config.folders and (out / records.CONFIG).exists():
        owner = records.read_json(out / records.CONFIG).get("experiment", "an unknown command")
        raise ValueError(f"out: {out} holds a run of {owner}; name another folder with --out")
    write([gather(folder) for folder in config.folders], out)
    path = out / REPORT
    console.print(f"report: {path}", style="bold", highlight=False, soft_wrap=True)
    return path


def write(reproductions: Sequence[Reproduction], out: Path) -> list[Findings]:
    """Find, and write what was found.

    Args:
        reproductions: side by side in the page.
        out: folder; figures go to `figures` in it, for several reproductions to a folder each.
    """
    findings = find(reproductions)
    records.write_json(
        out / records.SUMMARY, {"reproductions": [each.record() for each in findings]}
    )
    write_atomically(out / CLAIMS, markdown.page(findings).encode())
    folder = out / figures.FIGURES
    drawings = [
        figures.draw(each, folder / _slug(each.name) if len(findings) > 1 else folder)
        for each in findings
    ]
    html = page.render(findings, drawings, [page.pictures(each) for each in reproductions])
    write_atomically(out / REPORT, html.encode())
    return findings


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
