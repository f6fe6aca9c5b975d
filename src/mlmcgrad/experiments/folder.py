"""The run folder of an experiment: which experiment it belongs to, and what was found.

A folder belongs to one experiment with its settings (`runs.owner`). A run that took minutes is
continued, never computed anew over itself; one that takes seconds is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mlmcgrad.experiments.settings import Experiment, Grid, Simulation
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.claims import turn
from mlmcgrad.runs.owner import Owner, check_same, continued, held, write_config
from mlmcgrad.runs.pool import Part, forget, run_parts, share_parts

_FREE = frozenset(("out", "jobs", "resume", "force"))  # they change no number
_FREE |= {field.name for field in dataclasses.fields(Grid)}
_CONFIG, _SUMMARY = ".config", ".summary"  # who writes them


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


@contextmanager
def replaced(settings: Experiment) -> Iterator[None]:
    """Hold the folder for a run that takes seconds: one with the same settings is replaced."""
    with _held(settings, resume=not settings.force):
        _write_config(settings)
        (settings.out / records.SUMMARY).unlink(missing_ok=True)  # until this run is complete
        yield


@contextmanager
def simulated(
    settings: Simulation,
    part: Part,
    arguments: Mapping[str, Mapping[str, Any]],
    summarise: Callable[[dict[str, Any]], Findings],
    console: Console,
) -> Iterator[Findings]:
    """Hold the folder, do the rest of a run that takes minutes, and write its findings.

    If it is complete, they are read. `part` and `arguments` are those of `run_parts`; `summarise`
    makes the findings from the results of the parts by name.
    """
    with _joined(settings) if settings.join else _held(settings, resume=settings.resume):
        if settings.join:
            share_parts(part, arguments, settings.out, settings.jobs, console)
        # From here on one of those who share the folder after another.
        with turn(settings.out, _SUMMARY) if settings.join else nullcontext():
            if (settings.out / records.SUMMARY).exists():
                with _blamed_on_files(settings.out):
                    findings = Findings.read(settings.out)
                    forget(settings.out, arguments)  # of a run that was killed before it did
                    yield findings
                return
            if not settings.join:
                _write_config(settings)
            findings = summarise(run_parts(part, arguments, settings.out, settings.jobs, console))
            findings.write(settings.out)
            forget(settings.out, arguments)
            yield findings


@contextmanager
def _joined(settings: Simulation) -> Iterator[None]:
    """Hold the folder together with others; the first one writes config.json."""
    owner = _owner(settings)
    with held(settings.out, owner, resume=True, force=False, shared=True):
        with turn(settings.out, _CONFIG):
            if before := continued(settings.out, owner, resume=True):
                path = settings.out / records.CONFIG
                check_same(path, before.get("settings"), settings, _FREE)
            else:
                _write_config(settings)
        yield


@contextmanager
def _held(settings: Experiment, *, resume: bool) -> Iterator[None]:
    with held(settings.out, _owner(settings), resume=resume, force=settings.force) as before:
        if before:
            path = settings.out / records.CONFIG
            check_same(path, before.get("settings"), settings, _FREE)
        yield


@contextmanager
def _blamed_on_files(folder: Path) -> Iterator[None]:
    """Whatever goes wrong with findings that were read is the fault of their files."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        known = str(error) if str(folder) in str(error) else ""
        names = f"{records.METRICS} or {records.SUMMARY} in {folder} is damaged"
        raise ValueError(
            f"{known or f'{names} ({type(error).__name__}: {error})'}; remove "
            f"{records.SUMMARY} and repeat the command with --resume, which computes both again"
        ) from error


def _owner(settings: Experiment) -> Owner:
    return Owner(type(settings).__name__.lower(), settings.files)


def _write_config(settings: Experiment) -> None:
    write_config(settings.out, _owner(settings), settings=records.as_record(settings))
