"""`mlmcgrad bound`: nothing is simulated, the numbers are those of `mlmcgrad.theory`."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from mlmcgrad.experiments.bound.figures import draw
from mlmcgrad.experiments.bound.findings import evaluate
from mlmcgrad.experiments.bound.settings import Bound
from mlmcgrad.experiments.bound.tables import show
from mlmcgrad.experiments.folder import replaced


def run(settings: Bound, console: Console) -> dict[str, Any]:
    """Evaluate the bound, write the run folder, draw and print; returns the summary."""
    # Everything that can be wrong with the settings comes up before a file is written.
    findings = evaluate(settings)
    with replaced(settings):
        findings.write(settings.out)
        path = draw(settings.out, findings)
    show(findings, console)
    console.print(f"figure: {path}", style="bold", highlight=False, soft_wrap=True)
    return findings.summary
