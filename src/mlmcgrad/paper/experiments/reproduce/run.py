"""The command `mlmcgrad reproduce`: train the runs of Section 5, then write the report.

The report is made from the run folder alone, by the same code that `mlmcgrad report` calls.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console

from mlmcgrad.paper.experiments.plots import print_path, print_text, table
from mlmcgrad.paper.experiments.reproduce import report
from mlmcgrad.paper.experiments.reproduce.data import ERROR, name_damaged, read_reproduction
from mlmcgrad.paper.experiments.reproduce.findings import ReproductionFindings
from mlmcgrad.paper.experiments.reproduce.sentences import takeaways
from mlmcgrad.paper.experiments.reproduce.settings import (
    FILES,
    LABELS,
    OPTIMIZERS,
    RUNS,
    Reproduce,
    ReproduceSettings,
    decide,
    training_runs,
)
from mlmcgrad.paper.runs import folder as records
from mlmcgrad.paper.runs.folder import Owner, check_same, held, write_config
from mlmcgrad.paper.runs.pool import Report, run_jobs
from mlmcgrad.paper.training import config as training

Runs: TypeAlias = dict[str, training.Settings]
# Settings that no number depends on.
_FREE = ("out", "resume", "force", "jobs", "dask")
OWNER = Owner("reproduce", (RUNS, *FILES))
_SHOWN = ("br", "mlmc", "iwae")  # in the table that is printed; the report has all methods


def run(options: Reproduce, console: Console) -> ReproductionFindings:
    """Train all runs, write the report, print its main claims and return the findings.

    Raises:
        ValueError: a setting cannot be used; or runs failed (the report names them).
        Stopped: SIGINT or SIGTERM; everything is saved.
    """
    settings = decide(options)
    if settings.device != "cpu":  # torch, which checks it, is slow to import
        from mlmcgrad.paper.training.trainer import usable

        usable(settings.device)
    runs, folder = training_runs(settings), settings.folder
    with held(folder, OWNER, resume=settings.resume, force=settings.force) as before:
        with name_damaged([folder]):
            about = _open(settings, runs, before)
        remaining = sum(not complete(run) for run in runs.values())
        console.print(
            f"{len(runs)} runs on {settings.dataset}, {len(runs) - remaining} of them complete: "
            f"{', '.join(LABELS[m] for m in settings.methods)}; "
            f"{', '.join(OPTIMIZERS[o] for o in settings.optimizer)}; {settings.seeds} seeds; "
            f"BR-IWAE {settings.iterations} iterations, others {settings.stretch} times as many",
            highlight=False,
        )
        start = time.monotonic()
        try:
            errors = train_runs(runs, settings, console) if remaining else {}
        finally:
            if remaining:
                seconds = about.get("seconds", 0.0) + time.monotonic() - start
                now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                about |= {"seconds": round(seconds, 1), "finished": now}
                write_config(folder, OWNER, **about)
        with console.status("drawing the figures"):
            (findings,) = report.write([read_reproduction(folder)], folder)
    _print(findings, folder, console)
    if errors:
        names, first = ", ".join(errors), next(iter(errors.values())).partition("\n")[0]
        raise ValueError(
            f"{len(errors)} of {len(runs)} runs failed ({names}), the first because: "
            f"{first.rstrip(':.')}. The report has all reasons; the same command with --resume "
            "tries these runs again"
        )
    return findings


def train_runs(runs: Runs, settings: ReproduceSettings, console: Console) -> dict[str, str]:
    """Train the runs that are not complete, several at the same time, one process each.

    A run that fails leaves `error.json` in its folder, and the others continue. Returns the errors
    of the runs that failed.

    Raises:
        Stopped: SIGINT or SIGTERM; everything is saved.
    """
    todo = {
        name: {"settings": dataclasses.replace(run, out=run.out.resolve())}
        for name, run in runs.items()
        if not complete(run)
    }
    errors: dict[str, str] = {}
    how: dict[str, Any] = {"jobs": settings.jobs, "dask": settings.dask}
    ended = run_jobs(_train, todo, console, **how, finished=len(runs) - len(todo))
    with closing(ended):
        for job in ended:
            if job.reason is not None:
                errors[job.name] = job.reason
                records.write_json(runs[job.name].out / ERROR, {"error": job.reason})
    return errors


def complete(settings: training.Settings) -> bool:
    """Return whether a run has its summary, and all its iterations."""
    path = settings.out / records.SUMMARY
    return path.exists() and records.read_json(path).get("iteration") == settings.iterations


def _train(report_progress: Report, settings: training.Settings) -> None:
    from mlmcgrad.paper.training.loop import train  # late: the parent need not wait for torch

    (settings.out / ERROR).unlink(missing_ok=True)
    train(settings, report=report_progress)


def _open(settings: ReproduceSettings, runs: Runs, before: dict[str, Any]) -> dict[str, Any]:
    """Check that the reproduction in the folder can be resumed, and write config.json."""
    earlier = before["runs"] if before else {}
    for name in runs.keys() & earlier.keys():
        check_same(settings.folder / records.CONFIG, earlier[name], runs[name], training.FREE)
    own = dataclasses.asdict(settings)
    about = {
        "command": command(settings),
        "settings": {k: v for k, v in own.items() if k == "jobs" or k not in _FREE},
        "runs": {**earlier, **{name: records.as_record(run) for name, run in runs.items()}},
        "commit": _commit(),
        "cores": os.cpu_count(),
    }
    if "finished" in before:
        about |= {"seconds": 0.0 + before["seconds"], "finished": before["finished"]}
    write_config(settings.folder, OWNER, **about)
    return about


def command(settings: ReproduceSettings) -> str:
    """Return the command line with these settings, without the folder and the number of jobs."""
    parts = ["mlmcgrad reproduce", f"--preset {settings.preset}"]
    usual = dataclasses.asdict(decide(Reproduce(preset=settings.preset)))
    for name, value in dataclasses.asdict(settings).items():
        if name not in _FREE and value != usual[name]:
            text = " ".join(value) if isinstance(value, tuple) else str(value)
            parts.append(f"--{name} {text}")
    return " ".join(parts)


def _commit() -> str | None:
    """Return the commit of a source tree; None for an installed package."""
    root = Path(__file__).resolve().parents[5]
    if not (root / ".git").exists():
        return None
    git: Any = {"cwd": root, "check": True, "capture_output": True, "text": True, "timeout": 5.0}
    try:
        answer = subprocess.run(("git", "rev-parse", "HEAD"), **git)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _print(findings: ReproductionFindings, folder: Path, console: Console) -> None:
    """Print what equal budgets buy, the findings in a few sentences, and where the rest is."""
    for optimizer, name in OPTIMIZERS.items():
        every = {m: findings.curves.tests.get((optimizer, "nll", "evaluations", m)) for m in _SHOWN}
        curves = {LABELS[m]: curve for m, curve in every.items() if curve is not None}
        if len(curves) > 1:
            least = max(curve.x[0] for curve in curves.values())
            most = min(curve.x[-1] for curve in curves.values())
            of = f"{findings.seeds} seed{'s' * (findings.seeds > 1)}"
            title = f"Test NLL, nats per image ({name}, {of})"
            shown = table(title, "network evaluations", *curves)
            for budget in np.geomspace(least, most, 5):
                values = [f"{curve.at(budget):.2f}" for curve in curves.values()]
                shown.add_row(f"{budget:,.0f}", *values)
            console.print(shown)
    first, *others = takeaways(findings)
    print_text(first, console, style="bold")
    print_text("\n".join(others), console)
    print_text(f"all {len(findings.claims)} claims: {folder / report.CLAIMS}", console)
    print_path(folder / report.REPORT, console, "report")
