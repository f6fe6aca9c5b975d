"""The command `mlmcgrad reproduce`: Section 5 of the paper by one command.

The folder, see `gather.py`, holds the runs; figures, claims and report are made from it alone, by
the same code that `mlmcgrad report` calls.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mlmcgrad.experiments.reproduce import page as report
from mlmcgrad.experiments.reproduce import tables as report_tables
from mlmcgrad.experiments.reproduce.explain import explained
from mlmcgrad.experiments.reproduce.fleet import complete, run_fleet
from mlmcgrad.experiments.reproduce.gather import LABELS, OPTIMIZERS
from mlmcgrad.experiments.reproduce.presets import filled, training_runs
from mlmcgrad.experiments.reproduce.settings import Reproduce
from mlmcgrad.runs import folder as records
from mlmcgrad.training.config import Settings, check_same


def run(config: Reproduce, console: Console | None = None) -> dict[str, Any]:
    """Train everything, write the report and say where it is; returns what summary.json holds.

    Raises:
        ValueError: a setting cannot be used; or runs failed (the report names them).
        Stopped: SIGINT or SIGTERM; everything is saved.
    """
    console = console or Console()
    config = filled(config)
    runs = training_runs(config)
    about = _open(config, runs)
    left = [run for run in runs.values() if not complete(run)]
    _announce(config, len(runs), left, console)
    errors = _train(config, runs, about, console) if left else {}
    with console.status("drawing the figures"):
        found = report.read(config.folder)
        path = report.write([found], [explained(found)], config.folder)
    summary: dict[str, Any] = records.read_json(config.folder / records.SUMMARY)
    _print(summary, console)
    console.print(f"report: {path}", style="bold", highlight=False, soft_wrap=True)
    if errors:
        names = ", ".join(errors)
        raise ValueError(
            f"{len(errors)} of {len(runs)} runs failed ({names}); the report says why. The same "
            "command with --resume tries them again"
        )
    return summary


def _train(
    config: Reproduce, runs: dict[str, Settings], about: dict[str, Any], console: Console
) -> dict[str, str]:
    """Train what is not complete, and write down how long it took; the errors of failed runs."""
    start = time.monotonic()
    try:
        return run_fleet(runs, config.jobs, console)
    finally:
        about["seconds"] = round(about.get("seconds", 0.0) + time.monotonic() - start, 1)
        about["finished"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        records.write_json(config.folder / records.CONFIG, about)


def _open(config: Reproduce, runs: dict[str, Settings]) -> dict[str, Any]:
    """Make the folder, or check that what is in it can be continued; what config.json holds."""
    path = config.folder / records.CONFIG
    settings = {name: records.as_record(run) for name, run in runs.items()}
    before: dict[str, Any] = {}
    if path.exists():
        before = records.read_json(path)
        if before.get("experiment") != "reproduce":
            raise ValueError(
                f"out: {config.folder} holds another experiment ({before.get('experiment')}); name "
                "another folder with --out"
            )
        if not config.resume:
            raise ValueError(
                f"out: {config.folder} holds a reproduction already; continue it with --resume, or "
                "name another folder with --out"
            )
        for name, now in settings.items():
            if name in before["runs"]:
                check_same(now, before["runs"][name])
    fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in ("out", "resume")}
    about = {
        "experiment": "reproduce",
        "command": command(config),
        "settings": fields,
        "runs": {**before.get("runs", {}), **settings},
        "versions": records.versions(),
        "commit": _commit(),
        "cores": os.cpu_count(),
    }
    about |= {name: before[name] for name in ("seconds", "finished") if name in before}
    records.write_json(path, about)
    return about


def command(config: Reproduce) -> str:
    """The command line that these settings came from, without where and on how many cores."""
    words = ["mlmcgrad reproduce", f"--preset {config.preset}"]
    usual = filled(Reproduce(preset=config.preset))
    for field in dataclasses.fields(Reproduce):
        value = getattr(config, field.name)
        if field.name in ("preset", "out", "resume", "jobs") or value == getattr(usual, field.name):
            continue
        text = " ".join(value) if isinstance(value, tuple) else str(value)
        words.append(f"--{field.name} {text}")
    return " ".join(words)


def _announce(config: Reproduce, count: int, left: list[Settings], console: Console) -> None:
    console.print(
        f"{count} runs on {config.dataset}: {', '.join(LABELS[m] for m in config.methods)}; "
        f"{', '.join(OPTIMIZERS[o] for o in config.optimizer)}; {config.seeds} seeds; "
        f"BR-IWAE {config.iterations} iterations, the others {config.stretch} times as many",
        highlight=False,
    )
    if len(left) < count:
        console.print(f"{count - len(left)} of them are complete already", highlight=False)
    if left and config.preset != "smoke":
        from mlmcgrad.experiments.reproduce.forecast import forecast

        with console.status("measuring how long it will take"):
            time_needed = report_tables.duration(forecast(left) / config.jobs)
        console.print(
            f"estimated time with {config.jobs} runs side by side: {time_needed}",
            style="bold",
            highlight=False,
        )


def _commit() -> str | None:
    """The commit of a source tree; None for an installed package."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ("git", "rev-parse", "HEAD"),
            cwd=root,
            capture_output=True,
            text=True,
            timeout=5.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _print(summary: dict[str, Any], console: Console) -> None:
    table = Table(title="Claims")
    for name in ("claim", "optimizer", "value", "95 % interval", "verdict"):
        table.add_column(name, justify="right" if name in ("value", "95 % interval") else "left")
    for claim in summary["claims"]:
        low, high = claim["low"], claim["high"]
        table.add_row(
            claim["id"],
            OPTIMIZERS[claim["optimizer"]],
            "–" if claim["value"] is None else f"{claim['value']:.3g}",
            "–" if low is None else f"{low:.3g} … {high:.3g}",
            claim["verdict"],
        )
    console.print(table)


__all__ = ["command", "run"]
