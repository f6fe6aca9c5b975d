"""The report of reproductions: `report.html`, `summary.json`, `claims.md` and `figures/`.

Everything comes from the run folders. The page is one file: its figures and pictures are in it, and
it needs neither a script nor the network.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Console

from mlmcgrad.experiments import plots
from mlmcgrad.experiments.reproduce import figures as reproduce_plot
from mlmcgrad.experiments.reproduce import markdown as claims_markdown
from mlmcgrad.experiments.reproduce import tables as report_tables
from mlmcgrad.experiments.reproduce.claims import Claim
from mlmcgrad.experiments.reproduce.explain import explained
from mlmcgrad.experiments.reproduce.gather import (
    LABELS,
    OPTIMIZERS,
    Reproduction,
    TrainingRun,
    gather,
)
from mlmcgrad.experiments.reproduce.settings import Report
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.atomic import write_atomically

REPORT, CLAIMS = "report.html", "claims.md"
_TEMPLATE = "report.html.j2"
_WHERE = ("iteration", "epoch", "evaluations", "seconds")
_TEST = (*_WHERE, "nll")
_LINE = (*_WHERE, "levels", "effective", "acceptance", "theta_squared")


def run(config: Report, console: Console | None = None) -> Path:
    """Build the report of the named folders; returns the path of the page."""
    console = console or Console()
    reproductions = [read(folder) for folder in config.folders]
    claims = [explained(reproduction) for reproduction in reproductions]
    path = write(reproductions, claims, config.folder)
    console.print(f"report: {path}", style="bold", highlight=False, soft_wrap=True)
    return path


def read(folder: Path) -> Reproduction:
    """A reproduction that has all the columns that the report shows.

    Raises:
        ValueError: there is none in the folder, or a file is damaged; the message says which.
    """
    try:
        reproduction = gather(folder)
        _ = reproduction.dataset
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder / records.CONFIG} is damaged: {type(error).__name__} {error}; make the "
            "reproduction again with --resume, its finished runs are kept"
        ) from error
    for one in reproduction.runs:
        for rows, wanted in ((one.tests, _TEST), (one.lines, _LINE)):
            missing = {name for row in rows for name in wanted if name not in row}
            if missing:
                raise ValueError(
                    f"{one.folder / records.METRICS} is damaged: lines without "
                    f"{', '.join(sorted(missing))}; run that part again"
                )
    return reproduction


def write(
    reproductions: Sequence[Reproduction], claims: Sequence[Sequence[Claim]], out: Path
) -> Path:
    """Write page, summary and figures.

    Args:
        reproductions: side by side in the page.
        claims: what was found of each of them.
        out: folder; figures go to `figures` in it, for several reproductions to a folder each.

    Returns:
        Path of the page.
    """
    names = _names(reproductions)
    for name, reproduction in zip(names, reproductions, strict=True):
        folder = out / reproduce_plot.FIGURES
        reproduce_plot.draw(reproduction, folder / _slug(name) if len(names) > 1 else folder)
    records.write_json(out / records.SUMMARY, report_tables.summary(reproductions, claims, names))
    markdown = claims_markdown.page(names, reproductions, claims)
    write_atomically(out / CLAIMS, markdown.encode())
    parts = [_part(*each) for each in zip(names, reproductions, claims, strict=True)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mlmcgrad.experiments.reproduce", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(_TEMPLATE).render(
        parts=parts, number=report_tables.number, labels=LABELS, optimizers=OPTIMIZERS
    )
    write_atomically(out / REPORT, page.encode())
    return out / REPORT


def _part(name: str, reproduction: Reproduction, claims: Sequence[Claim]) -> dict[str, Any]:
    """What the template shows of one reproduction."""
    about = reproduction.about
    seeds = {run.seed for run in reproduction.runs}
    return {
        "name": name,
        "dataset": report_tables.dataset(reproduction),
        "about": about,
        "duration": report_tables.duration(about.get("seconds")),
        "seeds": len(seeds),
        "complete": sum(run.complete for run in reproduction.runs),
        "runs": len(reproduction.runs),
        "counts": report_tables.counts(claims),
        "claims": report_tables.claim_groups(claims),
        "figures": _figures(name, reproduction),
        "diagnostics": report_tables.diagnostics(reproduction),
        "common": report_tables.common_iterations(reproduction),
        "final": report_tables.final_rows(reproduction),
        "pictures": _pictures(reproduction),
        "failed": report_tables.failed(reproduction),
        "configuration": report_tables.configuration(reproduction),
    }


def _figures(name: str, reproduction: Reproduction) -> dict[str, Any]:
    """All panels as images; those of the main figure are among those of the paper's four."""
    panels: dict[tuple[str, str, str], dict[str, str]] = {}
    for optimizer in reproduction.optimizers:
        for quantity, of in reproduce_plot.QUANTITIES.items():
            for axis, against in reproduce_plot.AXES.items():
                drawn = plots.svg(reproduce_plot.tests(reproduction, optimizer, quantity, axis))
                text = f"{of} against {against}, {OPTIMIZERS[optimizer]}, on {name}"
                panels[quantity, optimizer, axis] = _image(drawn, text)
    paper = [
        {
            "title": f"{of[0].upper()}{of[1:]}, {OPTIMIZERS[optimizer]}",
            "panels": [panels[quantity, optimizer, axis] for axis in ("epoch", "evaluations")],
            "seconds": panels[quantity, optimizer, "seconds"],
        }
        for optimizer in reproduction.optimizers
        for quantity, of in reproduce_plot.QUANTITIES.items()
    ]
    cost = {"evaluations": "network evaluations", "seconds": "milliseconds"}
    return {
        "main": [
            panels[quantity, optimizer, "evaluations"]
            for quantity in ("nll", "gradient")
            for optimizer in reproduction.optimizers
        ],
        "paper": paper,
        "levels": _image(
            plots.svg(reproduce_plot.levels(reproduction)),
            f"Share of each level among the draws, and its law, on {name}",
        ),
        "cost": [
            _image(
                plots.svg(reproduce_plot.cost(reproduction, column)),
                f"Cost of an iteration in {unit} against iterations, on {name}",
            )
            for column, unit in cost.items()
        ],
    }


def _pictures(reproduction: Reproduction) -> list[dict[str, Any]]:
    """Of each method the last samples and reconstructions of the first complete run."""
    found = []
    for method in reproduction.methods:
        runs = [run for o in reproduction.optimizers for run in reproduction.of(method, o)]
        if runs:
            first = runs[0]
            images = {kind: _picture(first, kind) for kind in ("samples", "reconstructions")}
            title = f"{LABELS[method]}, {OPTIMIZERS[first.optimizer]}, seed {first.seed}"
            found.append({"title": title, **images})
    return found


def _picture(run: TrainingRun, kind: str) -> dict[str, str] | None:
    path = run.picture(kind)
    if path is None:
        return None
    alt = f"{kind.capitalize()} of {LABELS[run.method]} as a grid"
    return {"src": _data(path.read_bytes(), "image/png"), "alt": alt}


def _image(svg: str, alt: str) -> dict[str, str]:
    # As an image and not as part of the page: the names inside one SVG cannot meet another's.
    return {"src": _data(svg.encode(), "image/svg+xml"), "alt": alt}


def _data(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _names(reproductions: Sequence[Reproduction]) -> list[str]:
    """The datasets; where two are of the same one, with the names of their folders."""
    names = [report_tables.dataset(r) for r in reproductions]
    often = Counter(names)
    return [
        f"{name} ({r.folder.resolve().name})" if often[name] > 1 else name
        for name, r in zip(names, reproductions, strict=True)
    ]


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


__all__ = ["REPORT", "read", "run", "write"]
