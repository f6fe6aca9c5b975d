"""Train the runs of a reproduction side by side, each in a process of its own.

A run that fails leaves `error.json` in its folder, and the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from rich.console import Console

from mlmcgrad.experiments.reproduce.gather import ERROR
from mlmcgrad.runs.folder import SUMMARY, read_json, write_json
from mlmcgrad.runs.pool import Report, run_jobs
from mlmcgrad.training.config import Settings


def run_fleet(runs: Mapping[str, Settings], jobs: int, console: Console) -> dict[str, str]:
    """Train all runs that are not complete, and return the errors of those that failed.

    Args:
        runs: settings by name; each has its own run folder.
        jobs: processes.
        console: where the progress is shown.

    Raises:
        Stopped: SIGINT or SIGTERM; everything is saved.
    """
    todo = {name: {"settings": run} for name, run in runs.items() if not complete(run)}
    errors: dict[str, str] = {}
    finished = len(runs) - len(todo)
    with closing(run_jobs(_train, todo, jobs, console, finished=finished)) as ended:
        for job in ended:
            if job.reason is not None:
                errors[job.name] = job.reason
                write_json(runs[job.name].out / ERROR, {"error": job.reason})
    return errors


def complete(settings: Settings) -> bool:
    """Whether a run has its summary, and all its iterations."""
    path = settings.out / SUMMARY
    return path.exists() and read_json(path).get("iteration") == settings.iterations


def _train(report: Report, settings: Settings) -> None:
    from mlmcgrad.training.loop import train  # late: the parent need not wait for torch

    (settings.out / ERROR).unlink(missing_ok=True)
    train(settings, on_step=lambda iteration: report(iteration / settings.iterations))
