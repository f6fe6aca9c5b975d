"""The run folder of an experiment: which experiment it belongs to, and what was found.

A folder belongs to one experiment with its settings. No other experiment overwrites it, and a run
that took minutes is not overwritten at all: it is continued or refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mlmcgrad.experiments.settings import Experiment, Simulation
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.pool import Part, forget, run_parts

_FREE = {"out", "jobs", "resume"}  # may differ on resuming: they change no number


@dataclass(frozen=True)
class Findings:
    """What an experiment found, in numbers: all that its figures and tables are made from."""

    rows: list[dict[str, Any]]  # metrics.jsonl
    summary: dict[str, Any]  # summary.json

    @classmethod
    def read(cls, folder: Path) -> Findings:
        """Read what `write` has written."""
        rows = records.read_lines(folder / records.METRICS)
        return cls(rows, records.read_json(folder / records.SUMMARY))

    def write(self, folder: Path) -> None:
        """Write metrics.jsonl, and then summary.json, which says that the run is complete."""
        records.write_lines(folder / records.METRICS, self.rows)
        records.write_json(folder / records.SUMMARY, self.summary)


def replace(settings: Experiment) -> None:
    """Begin a run that takes seconds and replaces an earlier one of the same experiment."""
    records.claim(settings.out, type(settings).__name__.lower(), resume=True)
    records.write_config(settings.out, settings)
    (settings.out / records.SUMMARY).unlink(missing_ok=True)  # until this run is complete


def simulate(
    settings: Simulation,
    part: Part,
    arguments: Mapping[str, Mapping[str, Any]],
    summarise: Callable[[dict[str, Any]], Findings],
    console: Console,
) -> Findings:
    """Do the rest of a run that takes minutes, and write its findings; read them if it is complete.

    `part` and `arguments` are those of `run_parts`; `summarise` makes the findings from the results
    of the parts by name.
    """
    config = records.claim(settings.out, type(settings).__name__.lower(), resume=settings.resume)
    before = config.get("settings", dataclasses.asdict(settings))
    for name, value in dataclasses.asdict(settings).items():
        if name not in _FREE and before.get(name) != value:
            raise ValueError(
                f"{name} must be {before.get(name)!r} as in the run in {settings.out}, got "
                f"{value!r}; resume with the same settings, or name another folder with --out"
            )
    if (settings.out / records.SUMMARY).exists():
        return Findings.read(settings.out)
    records.write_config(settings.out, settings)
    findings = summarise(run_parts(part, arguments, settings.out, settings.jobs, console))
    findings.write(settings.out)
    forget(settings.out, arguments)
    return findings
