"""The run folder of an experiment: which experiment it belongs to, and its findings.

A folder belongs to one experiment with its settings (`runs.folder`). A run that takes minutes is
resumed and never overwritten; one that takes seconds is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mlmcgrad._files import write_atomically
from mlmcgrad.paper.experiments.settings import SimulationSettings
from mlmcgrad.paper.runs import folder as records
from mlmcgrad.paper.runs.pool import Part, forget, run_parts

_FREE = frozenset(("out", "jobs", "dask", "resume", "force"))  # they change no number
_AGAIN = f"remove {records.SUMMARY} and repeat the command with --resume, which computes both again"


@dataclass(frozen=True)
class Findings:
    """The numbers of an experiment, from which its figures and tables are made."""

    rows: list[dict[str, Any]]  # metrics.jsonl
    summary: dict[str, Any]  # summary.json

    @classmethod
    def read(cls, folder: Path) -> Findings:
        """Return the findings that `write` has written."""
        rows = records.read_lines(folder / records.METRICS)
        return cls(rows, records.read_json(folder / records.SUMMARY))

    def write(self, folder: Path) -> None:
        """Write metrics.jsonl, and then summary.json, which says that the run is complete."""
        write_atomically(folder / records.METRICS, b"".join(map(records.as_line, self.rows)))
        records.write_json(folder / records.SUMMARY, self.summary)


@contextmanager
def replaced(settings: Any, folder: Path) -> Iterator[None]:
    """Hold the folder for a run that takes seconds, and replace one with the same settings.

    `settings` are those of any command: a dataclass with `files` and `force`.
    """
    with _held(settings, folder, resume=not settings.force) as write_config:
        write_config()
        (folder / records.SUMMARY).unlink(missing_ok=True)  # until this run is complete
        yield


@contextmanager
def simulated(
    settings: SimulationSettings,
    part: Part,
    arguments: Mapping[str, Mapping[str, Any]],
    summarise: Callable[[dict[str, Any]], Findings],
    console: Console,
) -> Iterator[Findings]:
    """Hold the folder, do the rest of a run that takes minutes, and write its findings.

    The findings of a complete run are read. `part` and `arguments` are as in `run_parts`;
    `summarise` takes the results of the parts, keyed by name, and returns the findings.
    """
    folder = settings.out
    with _held(settings, folder, resume=settings.resume) as write_config:
        if (folder / records.SUMMARY).exists():
            with blamed_on(f"{records.METRICS} or {records.SUMMARY}", [folder], _AGAIN):
                findings = Findings.read(folder)
                forget(folder, arguments)  # of a run that was killed before it did
                yield findings
            return
        write_config()
        how: dict[str, Any] = {"jobs": settings.jobs, "dask": settings.dask}
        findings = summarise(run_parts(part, arguments, folder, console, **how))
        findings.write(folder)
        forget(folder, arguments)
        yield findings


@contextmanager
def _held(settings: Any, folder: Path, *, resume: bool) -> Iterator[Callable[[], None]]:
    """Hold the folder and check its settings; yields a function that writes config.json."""
    name = type(settings).__name__.removesuffix("Settings").lower()
    owner = records.Owner(name, settings.files)
    with records.held(folder, owner, resume=resume, force=settings.force) as before:
        if before:
            path = folder / records.CONFIG
            records.check_same(path, before.get("settings"), settings, _FREE)
        record = records.as_record(settings)
        yield lambda: records.write_config(folder, owner, settings=record)


@contextmanager
def blamed_on(files: str, folders: Sequence[Path], remedy: str) -> Iterator[None]:
    """Name the files and the remedy if they lack something, or hold something else in its place.

    Raises:
        ValueError: instead of the error that the content of these files causes.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        text = str(error)
        if not any(str(folder) in text for folder in folders):
            where = " or ".join(map(str, folders))
            text = f"{files} in {where} is damaged ({type(error).__name__}: {text})"
        elif " is damaged" not in text:
            raise
        raise ValueError(f"{text}; {remedy}") from error
