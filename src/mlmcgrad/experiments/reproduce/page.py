"""The page of the report: one file that needs neither a script nor the network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from mlmcgrad.experiments.reproduce import sentences, tables, text
from mlmcgrad.experiments.reproduce.curves import AXES, QUANTITIES
from mlmcgrad.experiments.reproduce.figures import Drawing
from mlmcgrad.experiments.reproduce.findings import Findings
from mlmcgrad.experiments.reproduce.gather import LABELS, OPTIMIZERS, Reproduction

_TEMPLATE = "report.html.j2"


def pictures(reproduction: Reproduction) -> dict[str, bytes]:
    """Of each method the last samples and reconstructions of the first complete run, by caption."""
    runs = [reproduction.of(method)[0] for method in LABELS if reproduction.of(method)]
    grids = {}
    for kind in ("samples", "reconstructions"):
        for run in runs:
            path = max(run.folder.glob(f"{kind}-*.png"), default=None)
            if path is not None:
                of = f"{LABELS[run.method]}, {OPTIMIZERS[run.optimizer]}, seed {run.seed}"
                grids[f"{kind.capitalize()}: {of}"] = path.read_bytes()
    return grids


def render(
    findings: Sequence[Findings],
    drawings: Sequence[Mapping[str, Drawing]],
    grids: Sequence[Mapping[str, bytes]],
) -> str:
    """The page, with the reproductions side by side."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mlmcgrad.experiments.reproduce", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"tables": tables, "sentences": sentences, "text": text}
    environment.globals |= {"labels": LABELS, "optimizers": OPTIMIZERS}
    parts = [_part(*each) for each in zip(findings, drawings, grids, strict=True)]
    return environment.get_template(_TEMPLATE).render(parts=parts)


def _part(
    findings: Findings, drawings: Mapping[str, Drawing], grids: Mapping[str, bytes]
) -> dict[str, Any]:
    """What the template shows of one reproduction."""
    # As images and not as parts of the page: the names inside one SVG cannot meet another's.
    images = {
        name: _image(drawing.svg.encode(), "svg+xml", drawing.alt)
        for name, drawing in drawings.items()
    }
    drawn = [optimizer for optimizer in OPTIMIZERS if f"nll-{optimizer}-evaluations" in images]
    return {
        "name": findings.name,
        "findings": findings,
        "about": findings.about,
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
