"""Train the runs of a reproduction side by side, each in a process of its own.

A run that fails leaves `error.json` in its folder, and the others go on. Fleets of several machines
share the runs by claims: a run whose process has died goes on from its last checkpoint elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from mlmcgrad.experiments.reproduce.gather import ERROR
from mlmcgrad.runs.claims import LostError
from mlmcgrad.runs.folder import SUMMARY, read_json, write_json
from mlmcgrad.runs.pool import Report, run_jobs
from mlmcgrad.runs.queues import Shared
from mlmcgrad.training.config import Settings

Stamp: TypeAlias = tuple[int, int] | None
"""Tells one file from another of the same name."""


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


def share_fleet(
    runs: Mapping[str, Settings], folder: Path, jobs: int, console: Console
) -> dict[str, str]:
    """Train the runs that no other process trains, and wait until all have ended.

    Args:
        runs: settings by name, the same in all processes.
        folder: that the processes share.
        jobs: processes on this machine.
        console: where the progress is shown.

    Returns:
        The errors of runs that failed, here or elsewhere.

    Raises:
        Stopped: SIGINT or SIGTERM; everything is saved.
    """
    known = {name: _stamp(run) for name, run in runs.items()}

    def ended(name: str) -> bool:
        return complete(runs[name]) or _failed(runs[name], known[name])

    todo = {
        name: {"settings": run, "known": known[name]}
        for name, run in runs.items()
        if not complete(run)
    }
    queue = Shared(_train_claimed, todo, folder, ended)
    finished = len(runs) - len(todo)
    jobs_ended = run_jobs(_train_claimed, todo, jobs, console, finished=finished, queue=queue)
    with closing(jobs_ended):
        for job in jobs_ended:
            if isinstance(job.error, ChildProcessError):  # which could not say so itself
                write_json(runs[job.name].out / ERROR, {"error": job.reason})
    return {name: _reason(run) for name, run in runs.items() if not complete(run)}


def complete(settings: Settings) -> bool:
    """Whether a run has its summary, and all its iterations."""
    path = settings.out / SUMMARY
    return path.exists() and read_json(path).get("iteration") == settings.iterations


def _train(report: Report, settings: Settings) -> None:
    from mlmcgrad.training.loop import train  # late: the parent need not wait for torch

    (settings.out / ERROR).unlink(missing_ok=True)
    train(settings, on_step=lambda iteration: report(iteration / settings.iterations))


def _train_claimed(report: Report, settings: Settings, known: Stamp) -> None:
    """Train a run that this process has claimed, unless it has ended elsewhere meanwhile."""
    from mlmcgrad.training.loop import train

    if complete(settings) or _failed(settings, known):
        return
    path = settings.out / ERROR
    path.unlink(missing_ok=True)
    share = 0.0

    def step(iteration: int) -> None:
        nonlocal share
        share = iteration / settings.iterations
        report(share)

    try:
        train(settings, on_step=step, claim=lambda: report(share))
    except (LostError, ConnectionError):  # another process has it, or the parent is gone
        raise
    except Exception as error:
        report(share)  # which raises if the run was taken over: then the error is not its own
        write_json(path, {"error": str(error) or type(error).__name__})
        raise


def _failed(settings: Settings, known: Stamp) -> bool:
    """Whether a run has failed since this process began."""
    return _stamp(settings) not in (None, known)


def _reason(settings: Settings) -> str:
    try:
        return str(read_json(settings.out / ERROR).get("error"))
    except FileNotFoundError:
        return "it failed, and another process tries it again"


def _stamp(settings: Settings) -> Stamp:
    try:
        about = (settings.out / ERROR).stat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_mtime_ns
