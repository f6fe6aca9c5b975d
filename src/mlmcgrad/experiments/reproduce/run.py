"""The command `mlmcgrad reproduce`: Section 5 of the paper by one command.

The folder, see `gather.py`, holds the runs; findings, figures and report are made from it alone, by
the same code that `mlmcgrad report` calls.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import subprocess
import time
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from mlmcgrad.experiments.reproduce import report, tables
from mlmcgrad.experiments.reproduce.checks import check_about
from mlmcgrad.experiments.reproduce.findings import Findings
from mlmcgrad.experiments.reproduce.fleet import complete, run_fleet, share_fleet
from mlmcgrad.experiments.reproduce.gather import LABELS, OPTIMIZERS, RUNS, gather
from mlmcgrad.experiments.reproduce.presets import Settings, decide, training_runs
from mlmcgrad.experiments.reproduce.sentences import HEADLINES, statement
from mlmcgrad.experiments.reproduce.settings import Reproduce
from mlmcgrad.experiments.reproduce.text import duration
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.claims import turn
from mlmcgrad.runs.owner import Owner, check_same, continued, held, write_config
from mlmcgrad.training import config as training

Runs: TypeAlias = dict[str, training.Settings]
# Settings that no number depends on.
_FREE = ("folder", "resume", "force", "jobs", "join")
OWNER = Owner("reproduce", (RUNS, *report.FILES))


def run(options: Reproduce, console: Console) -> Findings:
    """Train everything, write the report and say where it is; returns what was found.

    Raises:
        ValueError: a setting cannot be used; or runs failed (the report names them).
        Stopped: SIGINT or SIGTERM; everything is saved.
    """
    settings = decide(options)
    if settings.device != "cpu":  # every machine has that; torch, which knows, is slow to import
        from mlmcgrad.training.device import usable

        usable(settings.device)
    runs = training_runs(settings)
    how = {"resume": settings.resume, "force": settings.force, "shared": settings.join}
    with held(settings.folder, OWNER, **how) as before:
        findings, errors = (
            _share(settings, runs, console)
            if settings.join
            else _alone(settings, runs, before, console)
        )
    _print(findings, settings.folder, console)
    if errors:
        names, first = ", ".join(errors), next(iter(errors.values())).partition("\n")[0]
        raise ValueError(
            f"{len(errors)} of {len(runs)} runs failed ({names}), the first because: "
            f"{first.rstrip(':.')}. The "
            "report has all reasons; the same command with --resume tries these runs again"
        )
    return findings


def _alone(
    settings: Settings, runs: Runs, before: dict[str, Any], console: Console
) -> tuple[Findings, dict[str, str]]:
    """Train what is not complete, and write the report; what was found, and errors of runs."""
    about = _open(settings, runs, before)
    remaining = [run for run in runs.values() if not complete(run)]
    _announce(settings, len(runs), remaining, console)
    errors = {}
    if remaining:
        start = time.monotonic()
        try:
            errors = run_fleet(runs, settings.jobs, console)
        finally:
            _finish(settings.folder, about, time.monotonic() - start)
    with console.status("drawing the figures"):
        (findings,) = report.write([gather(settings.folder)], settings.folder)
    return findings, errors


def _share(settings: Settings, runs: Runs, console: Console) -> tuple[Findings, dict[str, str]]:
    """The same, together with other processes: the first one to see the end writes the report."""
    folder = settings.folder
    with turn(folder, ".config"):
        before = continued(folder, OWNER, resume=True)
        if before:
            check_about(folder / records.CONFIG, before)
            check_same(folder / records.CONFIG, before["settings"], settings, _FREE)
        else:
            _open(settings, runs, before)
    remaining = [run for run in runs.values() if not complete(run)]
    _announce(settings, len(runs), remaining, console)
    start = time.monotonic()
    errors = share_fleet(runs, folder, settings.jobs, console)
    seconds = time.monotonic() - start if remaining else 0.0
    with turn(folder, ".summary"), console.status("drawing the figures"):
        findings = report.written(gather(folder), folder)
        if findings is None:
            _finish(folder, records.read_json(folder / records.CONFIG), seconds)
            (findings,) = report.write([gather(folder)], folder)
    return findings, errors


def _finish(folder: Path, about: dict[str, Any], seconds: float) -> None:
    """Write to config.json how long the training took, and when it ended."""
    about["seconds"] = round(about.get("seconds", 0.0) + seconds, 1)
    about["finished"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_config(folder, OWNER, **about)


def _open(settings: Settings, runs: Runs, before: dict[str, Any]) -> dict[str, Any]:
    """Check that what is in the folder can be continued, and write what config.json holds."""
    earlier: dict[str, Any] = {}
    if before:
        check_about(settings.folder / records.CONFIG, before)
        earlier = before["runs"]
    for name in runs.keys() & earlier.keys():
        path = settings.folder / records.CONFIG
        check_same(path, earlier[name], runs[name], training.FREE)
    own = dataclasses.asdict(settings)
    about = {
        "command": command(settings),
        "settings": {k: v for k, v in own.items() if k == "jobs" or k not in _FREE},
        "runs": {**earlier, **{name: records.as_record(run) for name, run in runs.items()}},
        "commit": _commit(),
        "cores": os.cpu_count(),
    }
    about |= {name: before[name] for name in ("seconds", "finished") if name in before}
    write_config(settings.folder, OWNER, **about)
    return about


def command(settings: Settings) -> str:
    """The command line that gives these settings, apart from where and on how many cores."""
    parts = ["mlmcgrad reproduce", f"--preset {settings.preset}"]
    usual = dataclasses.asdict(decide(Reproduce(preset=settings.preset)))
    for name, value in dataclasses.asdict(settings).items():
        if name not in _FREE and value != usual[name]:
            text = " ".join(value) if isinstance(value, tuple) else str(value)
            parts.append(f"--{name} {text}")
    return " ".join(parts)


def _announce(
    settings: Settings, count: int, remaining: list[training.Settings], console: Console
) -> None:
    console.print(
        f"{count} runs on {settings.dataset}: {', '.join(LABELS[m] for m in settings.methods)}; "
        f"{', '.join(OPTIMIZERS[o] for o in settings.optimizer)}; {settings.seeds} seeds; "
        f"BR-IWAE {settings.iterations} iterations, the others {settings.stretch} times as many",
        highlight=False,
    )
    if len(remaining) < count:
        console.print(f"{count - len(remaining)} of them are complete already", highlight=False)
    if remaining and settings.preset != "smoke" and not settings.join:  # who knows how many join
        from mlmcgrad.experiments.reproduce.forecast import forecast

        with console.status("measuring how long it will take"):
            needed = duration(forecast(remaining) / settings.jobs)
        text = f"estimated time with {settings.jobs} runs side by side: {needed}"
        console.print(text, style="bold", highlight=False)


def _commit() -> str | None:
    """The commit of a source tree; None for an installed package."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():
        return None
    command = ("git", "rev-parse", "HEAD")
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 5.0}
    try:
        answer = subprocess.run(command, cwd=root, check=True, **options)
    except (OSError, subprocess.SubprocessError):
        return None
    return str(answer.stdout).strip()


def _print(findings: Findings, folder: Path, console: Console) -> None:
    """The claims that matter, each with what was found for both optimizers."""
    for subject in HEADLINES:
        claims = [claim for claim in findings.claims if claim.subject == subject]
        if claims:
            console.print(statement(subject), highlight=False, soft_wrap=True)
        for claim in claims:
            line = f"    {OPTIMIZERS[claim.optimizer]}: {tables.value(claim)}"
            console.print(line, highlight=False, soft_wrap=True)
    console.print(
        f"number (95 % interval over {findings.seeds} seeds) verdict; all "
        f"{len(findings.claims)} claims: {folder / report.CLAIMS}",
        highlight=False,
        soft_wrap=True,
    )
    path = folder / report.REPORT
    console.print(f"report: {path}", style="bold", highlight=False, soft_wrap=True)
