"""`--slurm N`: jobs that each run the same command with --join, submitted and followed.

The package submitit talks to Slurm. A job that is preempted, or reaches its time, is queued again
and goes on by joining: what it had finished is saved, and trainings have their checkpoints. Without
a cluster, submitit's local executor runs the same jobs as processes of this machine.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.experiments.settings import Grid
from mlmcgrad.runs.folder import SLURM
from mlmcgrad.runs.signals import Stopped

MINUTES = 240  # that a job may take before it is queued again
_AGAIN = 100  # times that it may be
_GRACE_SECONDS = 300.0
_POLL_SECONDS = 1.0
_HERE: dict[str, Any] = {"slurm": 0, "slurm_cluster": "slurm", "slurm_options": ()}


@dataclasses.dataclass(frozen=True)
class Task:
    """What a job does: the command. submitit calls `checkpoint` when it is to be queued again."""

    arguments: tuple[str, ...]

    def __call__(self) -> None:
        """Run the command; an error is in the output of the job."""
        code = main(list(self.arguments))
        if code == 128 + signal.SIGTERM and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
            # The job is preempted: everything is saved, and the signal that has it queued again
            # follows, or its end.
            time.sleep(_GRACE_SECONDS)
        if code:
            raise RuntimeError(f"mlmcgrad {' '.join(self.arguments)}: exit code {code}")

    def checkpoint(self) -> Any:
        """The same command: the folder knows how far it is."""
        return _submitit().helpers.DelayedSubmission(self)


def follow(name: str, settings: Grid, console: Console) -> Grid:
    """Submit the jobs of a command and wait for their end.

    Args:
        name: of the command.
        settings: its settings.
        console: where the jobs and their states are shown.

    Returns:
        Settings of the command that shows the result; it has nothing left to compute.

    Raises:
        ValueError: nothing can be submitted here, or all jobs failed.
        Stopped: a signal; the jobs go on.
    """
    joined = dataclasses.replace(settings, join=True, **_HERE)
    jobs = _submit(name, settings, joined)
    logs = settings.folder.resolve() / SLURM
    ids = " ".join(job.job_id for job in jobs)
    _print(console, f"{len(jobs)} jobs submitted: {ids}")
    _print(console, f"run folder: {settings.folder}; output of the jobs: {logs}")
    try:
        _wait(jobs, console)
    except Stopped as stopped:
        parents = " ".join(dict.fromkeys(job.job_id.partition("_")[0] for job in jobs))
        tools = ("squeue -j", "scancel") if settings.slurm_cluster == "slurm" else ("ps", "kill")
        raise Stopped(
            stopped.number,
            f"the jobs go on; watch them with {tools[0]} {parents.replace(' ', ',')}, stop them "
            f"with {tools[1]} {parents}; the same command with --join instead of --slurm helps "
            "them, or shows the result",
        ) from None
    failed = [job for job in jobs if job.exception() is not None]
    for job in failed:
        _print(console, f"job {job.job_id} failed: {_reason(job)}")
    if len(failed) == len(jobs):
        raise ValueError(f"slurm: all {len(jobs)} jobs failed; their output is in {logs}")
    return joined


def _submit(name: str, settings: Grid, joined: Grid) -> list[Any]:
    submitit = _submitit()
    arguments = [name, *words(joined)]
    arguments += ["--out", str(settings.folder.resolve())]
    options = {"time": str(MINUTES), "cpus_per_task": str(getattr(settings, "jobs", 1))}
    options |= {key: value for key, _, value in (o.partition("=") for o in settings.slurm_options)}
    minutes = options.pop("time")
    if not minutes.isdecimal() or int(minutes) == 0:
        raise ValueError(f"slurm_options: time must be a number of minutes ≥ 1, got {minutes!r}")
    try:
        executor = submitit.AutoExecutor(
            folder=settings.folder.resolve() / SLURM,
            cluster=settings.slurm_cluster,
            slurm_max_num_timeout=_AGAIN,
        )
        executor.update_parameters(
            name=f"mlmcgrad-{name}",
            timeout_min=int(minutes),
            **{f"slurm_{k}": int(v) if v.isdecimal() else v for k, v in options.items()},
        )
        with executor.batch():
            return [executor.submit(Task(tuple(arguments))) for _ in range(settings.slurm)]
    except NameError as error:  # as submitit calls an option that it does not know
        raise ValueError(f"slurm_options: {str(error).splitlines()[0]}") from error
    except RuntimeError as error:
        raise ValueError(
            f"slurm: {str(error).splitlines()[0]} Submit where sbatch works, or try the command "
            "with --slurm-cluster local"
        ) from error


def words(settings: Any) -> list[str]:
    """The options of a command that give these settings, without those that are as ever."""
    found: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value != field.default and field.name != "out":
            found.append("--" + field.name.replace("_", "-"))
            found += map(str, value) if isinstance(value, tuple) else [str(value)]
            if value is True:
                found.pop()
    return found


def _wait(jobs: list[Any], console: Console) -> None:
    shown = ""
    with console.status("waiting for the jobs") as status:
        while True:
            states = Counter(job.state.lower() for job in jobs)
            text = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            if text != shown:
                shown = text
                status.update(f"jobs: {text}")
                if not console.is_terminal:
                    _print(console, f"jobs: {text}")
            if all(job.done() for job in jobs):
                return
            time.sleep(_POLL_SECONDS)


def _reason(job: Any) -> str:
    """The last line that it wrote."""
    path = Path(job.paths.stderr)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    own = [line for line in lines if line.startswith("mlmcgrad: ")]
    return (own or lines or ["it wrote nothing"])[-1]


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _submitit() -> Any:
    try:
        import submitit
        import submitit.helpers
    except ImportError as error:
        raise ValueError(
            f"slurm needs the package submitit ({error}); pip install 'mlmcgrad[slurm]', or start "
            "the same command with --join on each machine"
        ) from error
    return submitit
