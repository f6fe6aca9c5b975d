"""Many training runs side by side, each in a process of its own, with one live display.

A run that fails is written down and the others go on; a process that dies takes only its run with
it. SIGINT or SIGTERM lets every process save a checkpoint first. The processes are in groups of
their own, so that Ctrl-C reaches them once, from here; if this process is killed, they notice that
nobody listens any more and stop.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mlmcgrad.experiments.reproduce.gather import ERROR
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.signals import Signals
from mlmcgrad.training.config import Config
from mlmcgrad.training.errors import Stopped

_POLL_SECONDS = 0.2
# spawn: a forked process would inherit torch's threads in an undefined state
_CONTEXT = multiprocessing.get_context("spawn")


def run_fleet(runs: Mapping[str, Config], jobs: int, console: Console) -> dict[str, str]:
    """Train all runs that are not complete, and return the errors of those that failed.

    Args:
        runs: settings by name; each has its own run folder.
        jobs: processes.
        console: where the progress is shown.

    Raises:
        Stopped: SIGINT or SIGTERM; everything is saved.
    """
    todo = [name for name, config in runs.items() if not complete(config)]
    fleet = _Fleet(runs, todo)
    with Signals() as signals, _Display(runs, todo, console) as display:
        try:
            fleet.start(min(jobs, len(todo)))
            while fleet.workers:
                fleet.listen(display)
                if signals.number is not None:
                    fleet.stop(signal.SIGTERM)
        finally:  # also if this process has to end at once
            fleet.stop(signal.SIGKILL)
    if signals.number is not None:
        name = signal.Signals(signals.number).name
        raise Stopped(
            f"{name}: stopped, all saved; continue with the same command and --resume",
            128 + signals.number,
            0,
        )
    return fleet.errors


def complete(config: Config) -> bool:
    """Whether a run has its summary, and all its iterations."""
    path = config.folder / records.SUMMARY
    return path.exists() and records.read_json(path)["iteration"] == config.iterations


class _Worker:
    """A process that trains one run after another, and what it is at."""

    def __init__(self) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()
        self.name = ""


class _Fleet:
    def __init__(self, runs: Mapping[str, Config], todo: list[str]) -> None:
        self.runs, self.todo = runs, list(todo)
        self.workers: list[_Worker] = []
        self.errors: dict[str, str] = {}
        self.stopping = False

    def start(self, jobs: int) -> None:
        for _ in range(jobs):
            self._add()

    def listen(self, display: _Display) -> None:
        """Take in what the processes say, until none says more for a moment."""
        heard = wait([worker.connection for worker in self.workers], _POLL_SECONDS)
        for worker in [w for w in self.workers if w.connection in heard]:
            try:
                kind, content = worker.connection.recv()
            except (EOFError, OSError):
                self._gone(worker, display)
                continue
            if kind == "step":
                display.update(worker.name, content)
            else:
                self._ended(worker, content, display)
                self._next(worker)

    def stop(self, number: int) -> None:
        """Send a signal to every process, SIGTERM only once: a second one would not let it save."""
        if self.stopping and number == signal.SIGTERM:
            return
        self.stopping = True
        for worker in self.workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, number)

    def _add(self) -> None:
        worker = _Worker()
        self.workers.append(worker)
        self._next(worker)

    def _next(self, worker: _Worker) -> None:
        """Give a process its next run, or let it go."""
        try:
            if self.todo and not self.stopping:
                worker.name = self.todo.pop(0)
                (self.runs[worker.name].folder / ERROR).unlink(missing_ok=True)
                worker.connection.send(self.runs[worker.name])
                return
            worker.name = ""
            worker.connection.send(None)
        except OSError:  # it died in between; the next `listen` finds out
            return

    def _ended(self, worker: _Worker, error: str | None, display: _Display) -> None:
        if error is not None:
            self._failed(worker.name, error)
        display.end(worker.name, error)

    def _gone(self, worker: _Worker, display: _Display) -> None:
        """A process ended: because it was told to, or it died."""
        worker.process.join()
        worker.connection.close()
        self.workers.remove(worker)
        if worker.name and not self.stopping:
            code = worker.process.exitcode
            error = f"its process ended with {_exit(code)}"
            self._failed(worker.name, error)
            display.end(worker.name, error)
            if self.todo:
                self._add()

    def _failed(self, name: str, error: str) -> None:
        self.errors[name] = error
        records.write_json(self.runs[name].folder / ERROR, {"error": error})


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        hint = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
        return f"signal {signal.Signals(-code).name}{hint}"
    return f"exit code {code}"


class _Display:
    """One bar for everything, and one for each run that is going on."""

    def __init__(self, runs: Mapping[str, Config], todo: list[str], console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.console, self.runs = console, runs
        self.progress = Progress(*columns, console=console, transient=True)
        done = len(runs) - len(todo)
        self.whole = self.progress.add_task(
            "all runs", total=float(len(runs)), completed=done, state=f"{done}/{len(runs)}"
        )
        self.bars: dict[str, Any] = {}
        self.share: dict[str, float] = {name: float(name not in todo) for name in runs}

    def __enter__(self) -> _Display:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def update(self, name: str, iteration: int) -> None:
        total = self.runs[name].iterations
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(name, total=total, state="")
        self.progress.update(self.bars[name], completed=iteration, state=f"{iteration}/{total}")
        self._whole(name, iteration / total)

    def end(self, name: str, error: str | None) -> None:
        if name in self.bars:
            self.progress.remove_task(self.bars.pop(name))
        self._whole(name, 1.0)
        words = "done" if error is None else f"failed: {error}"
        if error is not None or not self.console.is_terminal:
            self.console.print(f"{name}: {words}", highlight=False, soft_wrap=True)

    def _whole(self, name: str, share: float) -> None:
        self.share[name] = share
        ended = sum(value >= 1.0 for value in self.share.values())
        self.progress.update(
            self.whole, completed=sum(self.share.values()), state=f"{ended}/{len(self.runs)}"
        )


def _serve(connection: Connection) -> None:
    """What a process does: train what it is sent, say how it goes, until it is sent nothing."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    # Imported here: the parent need not wait for torch before it shows anything.
    from mlmcgrad.training.loop import train

    last = 0.0

    def tell(iteration: int) -> None:
        nonlocal last
        if time.monotonic() - last > _POLL_SECONDS:
            last = time.monotonic()
            connection.send(("step", iteration))

    while (config := connection.recv()) is not None:
        error: str | None = None
        try:
            train(config, on_step=tell)
        except (Stopped, BrokenPipeError):  # told to stop, or nobody listens any more
            return
        except Exception as problem:  # whatever it is, the others go on
            error = str(problem) or type(problem).__name__
        connection.send(("end", error))


__all__ = ["complete", "run_fleet"]
