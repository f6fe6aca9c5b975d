"""The report of reproductions: `report.html`, `summary.json`, `claims.md` and `figures/`.

    runs → findings → figures, page, Markdown

`mlmcgrad reproduce` ends with it, and `mlmcgrad report` makes it again from the run folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from mlmcgrad.experiments.reproduce import figures, markdown, page
from mlmcgrad.experiments.reproduce.findings import Findings, find
from mlmcgrad.experiments.reproduce.gather import Reproduction, gather
from mlmcgrad.experiments.reproduce.settings import Report
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.owner import Owner, check_same, held, write_config

REPORT, CLAIMS = "report.html", "claims.md"
FILES = (REPORT, CLAIMS, figures.FIGURES)
OWNER = Owner("report", FILES)


def run(config: Report, console: Console) -> Path:
    """Build the report of the named folders; returns the path of the page."""
    out = config.folder
    reproductions = [gather(folder) for folder in config.folders]
    with _held(config):
        write(reproductions, out)
    path = out / REPORT
    console.print(f"report: {path}", style="bold", highlight=False, soft_wrap=True)
    return path


@contextmanager
def _held(config: Report) -> Iterator[None]:
    """Hold the folder of the report: that of its only reproduction, or one of its own."""
    out = config.folder
    if out.resolve() in [folder.resolve() for folder in config.folders]:
        if len(config.folders) > 1:
            raise ValueError(
                f"out: {out} is one of the reproductions and has a report of its own; name another "
                "folder with --out"
            )
        with held(out, Owner("reproduce"), resume=True, force=False):
            yield
        return
    with held(out, OWNER, resume=not config.force, force=config.force) as before:
        if before:
            check_same(out / records.CONFIG, before.get("settings"), config, ("out", "force"))
        write_config(out, OWNER, settings=records.as_record(config))
        yield


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


def written(reproduction: Reproduction, out: Path) -> Findings | None:
    """What was found, if the report of it is there and says the same; else None."""
    if not ((out / REPORT).exists() and (out / records.SUMMARY).exists()):
        return None
    (findings,) = find([reproduction])
    record = {"reproductions": [findings.record()]}
    same = records.read_json(out / records.SUMMARY) == json.loads(json.dumps(record))
    return findings if same else None


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
