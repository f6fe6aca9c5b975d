"""The report of reproductions: `report.html`, `summary.json`, `claims.md` and `figures/`.

    runs → findings → figures, HTML page, Markdown

`mlmcgrad reproduce` ends with it; `mlmcgrad report` writes it again from the run folders.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2
from rich.console import Console

from mlmcgrad._files import write_atomically
from mlmcgrad.paper.experiments.folder import replaced
from mlmcgrad.paper.experiments.plots import print_path
from mlmcgrad.paper.experiments.reproduce import figures, sentences
from mlmcgrad.paper.experiments.reproduce.claims import Claim, Subject
from mlmcgrad.paper.experiments.reproduce.data import Reproduction, name_damaged, read_reproduction
from mlmcgrad.paper.experiments.reproduce.findings import (
    AXES,
    QUANTITIES,
    Diagnostics,
    FinalTest,
    ReproductionFindings,
    find,
)
from mlmcgrad.paper.experiments.reproduce.sentences import note, number, paper, setting, spread
from mlmcgrad.paper.experiments.reproduce.settings import FILES, LABELS, OPTIMIZERS, ReportSettings
from mlmcgrad.paper.runs import folder as records
from mlmcgrad.paper.runs.folder import Owner, held

REPORT, CLAIMS, FIGURES = FILES


def run(config: ReportSettings, console: Console) -> Path:
    """Build the report of the named folders and return the path of the page."""
    reproductions = [read_reproduction(folder) for folder in config.folders]
    with _held(config):
        write(reproductions, config.folder)
    path = config.folder / REPORT
    print_path(path, console, "report")
    return path


def _held(config: ReportSettings) -> AbstractContextManager[object]:
    """Hold the folder of the report: that of its only reproduction, or a separate one."""
    out = config.folder
    if out.resolve() not in [folder.resolve() for folder in config.folders]:
        return replaced(config, out)
    if len(config.folders) > 1:
        raise ValueError(
            f"out: {out} is one of the reproductions and has a report of its own; name another "
            "folder with --out"
        )
    return held(out, Owner("reproduce"), resume=True, force=False)


def write(reproductions: Sequence[Reproduction], out: Path) -> list[ReproductionFindings]:
    """Compute the findings of reproductions and write their report.

    Args:
        reproductions: shown side by side in the page.
        out: folder of the report. The figures of several reproductions have a folder each.
    """
    folder = out / FIGURES
    with name_damaged([each.folder for each in reproductions]):
        findings = find(reproductions)
        claims, grids = markdown(findings), [pictures(each) for each in reproductions]
        summary = {"reproductions": [each.record() for each in findings]}
    # The numbers first: a figure that cannot be drawn loses none of them.
    records.write_json(out / records.SUMMARY, summary)
    write_atomically(out / CLAIMS, claims.encode())
    drawings = []
    for each in findings:
        slug = re.sub(r"\W|_", "-", each.name.lower()).strip("-")
        drawings.append(figures.draw(each, folder / slug if len(findings) > 1 else folder))
    write_atomically(out / REPORT, render(findings, drawings, grids).encode())
    return findings


def pictures(reproduction: Reproduction) -> dict[str, bytes]:
    """Return the last samples and reconstructions of each method's first complete run."""
    runs = [reproduction.of(method)[0] for method in LABELS if reproduction.of(method)]
    grids = {}
    for kind in ("samples", "reconstructions"):
        for run in runs:
            path = max(run.folder.glob(f"{kind}-*.png"), default=None)
            if path is not None:
                of = f"{LABELS[run.method]}, {OPTIMIZERS[run.optimizer]}, seed {run.seed}"
                grids[f"{kind.capitalize()}: {of}"] = _read_png(path, reproduction.folder)
    return grids


def _read_png(path: Path, folder: Path) -> bytes:
    """Read a picture. Anything else that a link points to would be published with the page."""
    inside = path.resolve().is_relative_to(folder.resolve())
    content = path.read_bytes() if inside else b""
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError(f"{path} is damaged: it is not a PNG file inside {folder}")
    return content


def render(
    findings: Sequence[ReproductionFindings],
    drawings: Sequence[Mapping[str, figures.Drawing]],
    grids: Sequence[Mapping[str, bytes]],
) -> str:
    """Render the page: one file that needs neither a script nor the network."""
    parts = [_part(*each) for each in zip(findings, drawings, grids, strict=True)]
    return _filled("report.html.j2", parts)


def markdown(findings: Sequence[ReproductionFindings]) -> str:
    """Return `claims.md`: origin, sentences, tables and notes of each reproduction."""
    return _filled("claims.md.j2", [_tables(each) for each in findings])


def _filled(template: str, parts: Sequence[Mapping[str, Any]]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mlmcgrad.paper.experiments.reproduce", "."),
        autoescape="html" in template,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"text": sentences, "labels": LABELS, "optimizers": OPTIMIZERS}
    return environment.get_template(template).render(parts=parts)


def _tables(findings: ReproductionFindings) -> dict[str, Any]:
    """Return what the templates show of one reproduction, but for its pictures."""
    about, verdicts = findings.about, [claim.verdict for claim in findings.claims]
    present = {claim.optimizer for claim in findings.claims}
    notes = {claim: note(claim, findings.diagnostics) for claim in findings.claims}
    return {
        "name": findings.name,
        "findings": findings,
        "about": about,
        "shown": [name for name in OPTIMIZERS if name in present],
        "groups": _groups(findings.claims),
        "notes": {claim: text for claim, text in notes.items() if text},
        "shares": shares(findings),
        "commit": (about.get("commit") or "not recorded")[:12],
        "versions": ", ".join(f"{k} {v}" for k, v in (about.get("versions") or {}).items()),
        "counts": ", ".join(
            f"{symbol} {each}: {verdicts.count(each)}"
            for each, (symbol, _) in sentences.VERDICTS.items()
        ),
        "final": _final_rows(findings),
        "configuration": {
            key: setting(value) for key, value in {**about["settings"], **about["training"]}.items()
        },
    }


def _part(
    findings: ReproductionFindings,
    drawings: Mapping[str, figures.Drawing],
    grids: Mapping[str, bytes],
) -> dict[str, Any]:
    """Add the pictures of the page."""
    # Images, not inline SVG: the identifiers of two SVGs in one page would clash.
    images = {
        name: _image(drawing.svg.encode(), "svg+xml", drawing.alt)
        for name, drawing in drawings.items()
    }
    drawn = [optimizer for optimizer in OPTIMIZERS if f"nll-{optimizer}-evaluations" in images]
    return {
        **_tables(findings),
        "images": images,
        "main": [images[f"nll-{optimizer}-evaluations"] for optimizer in drawn],
        "paper": {
            f"{of[0].upper()}{of[1:]}, {OPTIMIZERS[optimizer]}": [
                images[f"{quantity}-{optimizer}-{axis}"] for axis in AXES
            ]
            for optimizer in drawn
            for quantity, of in QUANTITIES.items()
        },
        "pictures": [_image(png, "png", caption) for caption, png in grids.items()],
    }


def _image(content: bytes, kind: str, alt: str) -> dict[str, str]:
    return {"src": f"data:image/{kind};base64,{base64.b64encode(content).decode()}", "alt": alt}


def _groups(claims: Sequence[Claim]) -> dict[str, dict[Subject, dict[str, Claim]]]:
    """Group claims by the paper's sentence ("" for those beyond it), subject and optimizer."""
    groups: dict[str, dict[Subject, dict[str, Claim]]] = {}
    for claim in sorted(claims, key=lambda claim: not paper(claim)):
        rows = groups.setdefault(paper(claim), {})
        rows.setdefault(claim.subject, {})[claim.optimizer] = claim
    return groups


def shares(findings: ReproductionFindings) -> dict[Diagnostics, tuple[float | None, float | None]]:
    """Return the ratios to BR-IWAE's evaluations and to all its decoder passes per iteration."""
    of_br = {row.optimizer: row for row in findings.diagnostics if row.method == "br"}
    every: dict[Diagnostics, tuple[float | None, float | None]] = {}
    for row in findings.diagnostics:
        br = of_br.get(row.optimizer)
        counted = None if br is None else row.evaluations / br.evaluations
        both = None
        if br is not None and br.decoded_again is not None and row.decoded_again is not None:
            passes = row.evaluations + row.decoded_again
            both = passes / (br.evaluations + br.decoded_again)
        every[row] = counted, both
    return every


def _final_rows(findings: ReproductionFindings) -> list[dict[str, str]]:
    """Return the rows of the final tests, mean ± standard deviation over seeds."""
    groups: dict[tuple[str, str], list[FinalTest]] = {}
    for row in findings.final:  # in the order of display
        groups.setdefault((row.optimizer, row.method), []).append(row)
    return [
        {
            "optimizer": OPTIMIZERS[optimizer],
            "method": LABELS[method],
            "seeds": str(len(last)),
            "iterations": number(max(row.iteration for row in last)),
            "truncation": number(max(row.truncation for row in last)),
            "nll": spread([row.nll for row in last]),
            "gradient": spread([row.gradient for row in last if row.gradient is not None]),
            "evaluations": number(fmean(row.evaluations for row in last) / 1e6),
            "seconds": number(fmean(row.seconds for row in last)),
        }
        for (optimizer, method), last in groups.items()
    ]
