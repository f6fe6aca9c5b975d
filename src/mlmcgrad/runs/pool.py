"""Independent jobs in worker processes, with one live display.

A job that fails is reported and the others go on; a process that dies takes only its job with it.
SIGINT, SIGTERM and SIGHUP are passed on to the workers as SIGTERM, so that a job can save its state
first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import TaskID

from mlmcgrad.runs.folder import PARTS, read_json, write_json
from mlmcgrad.runs.progress import bars
from mlmcgrad.runs.signals import RESUME, Signals, Stopped
from mlmcgrad.runs.workers import POLL_SECONDS, Ended, Part, Report, Worker, threads

Arguments: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Keyword arguments by the name of a job."""

_STOPPED = f"stopped, everything finished is saved; {RESUME}"


def run_parts(
    part: Part, arguments: Arguments, folder: Path, jobs: int, console: Console
) -> dict[str, Any]:
    """Run a part for each named set of arguments and return their results by name.

    Every result is saved at once, with the call that it belongs to: a run that is started again
    computes only what is missing.

    Args:
        part: the function; it must live in a module, and its results must fit into JSON.
        arguments: keyword arguments of each part; numbers and strings.
        folder: run folder; the results are in its subfolder `parts` until `forget` is called.
        jobs: processes; 1 runs everything in this one.
        console: where the progress is shown.

    Raises:
        Stopped: SIGINT, SIGTERM or SIGHUP; the finished parts are saved.
        ChildProcessError: a process was killed; the finished parts are saved.
        ValueError: a saved result is damaged; the message names the file.
    """
    paths = {name: folder / PARTS / f"{name}.json" for name in arguments}
    calls = {name: _call(part, values) for name, values in arguments.items()}
    saved = {name: _saved(path, calls[name]) for name, path in paths.items() if path.exists()}
    results = {name: record["result"] for name, record in saved.items() if record is not None}
    todo = {name: values for name, values in arguments.items() if name not in results}
    ended = (
        run_jobs(part, todo, jobs, console, finished=len(results))
        if min(jobs, len(todo)) > 1
        else _run_here(part, todo, console, finished=len(results))
    )
    with closing(ended):
        for job in ended:
            if isinstance(job.error, ChildProcessError):
                raise ChildProcessError(f"{job.name}: {job.error}; {RESUME}")
            if job.error is not None:
                raise job.error
            result = json.loads(json.dumps(job.result))
            record = {"call": calls[job.name], "result": result, "sha256": _digest(result)}
            write_json(paths[job.name], record)
            results[job.name] = result
    return {name: results[name] for name in arguments}


def forget(folder: Path, names: Iterable[str]) -> None:
    """Remove the saved parts of these names, once the results of the whole run are written."""
    for name in names:
        (folder / PARTS / f"{name}.json").unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or holds files that are not ours
        (folder / PARTS).rmdir()


def run_jobs(
    function: Part, arguments: Arguments, jobs: int, console: Console, *, finished: int = 0
) -> Generator[Ended, None, None]:
    """Call a function for each named set of arguments, in processes; yield each job as it ends.

    Close the iterator if you leave it early (`contextlib.closing`): that ends the processes.

    Args:
        function: it must live in a module.
        arguments: keyword arguments of each job.
        jobs: processes.
        console: where the progress is shown.
        finished: jobs that were done before; the display counts them.

    Raises:
        Stopped: SIGINT, SIGTERM or SIGHUP, once every job has saved its state.
    """
    pool = _Pool(function, arguments, jobs)
    with Signals() as signals, _Display(len(arguments), finished, console) as display:
        try:
            while pool.assign():
                for name, message in pool.listen():
                    display.show(name, message)
                    if isinstance(message, Ended):
                        yield message
                if signals.number is not None:
                    pool.stop()
        finally:  # also if this process has to end at once
            pool.kill()
    signals.raise_stopped(_STOPPED)


def one_thread() -> AbstractContextManager[None]:
    """Keep torch to one thread: on small tensors more of them only wait for one another."""
    return threads(1)


def _run_here(
    function: Part, arguments: Arguments, console: Console, *, finished: int
) -> Generator[Ended, None, None]:
    with Signals() as signals, one_thread(), _Display(len(arguments), finished, console) as display:
        for name, values in arguments.items():
            try:
                with signals.at_once():
                    ended = Ended(name, function(partial(display.show, name), **values))
            except Stopped as stopped:
                raise Stopped(stopped.number, _STOPPED) from None
            display.show(name, ended)
            yield ended
    signals.raise_stopped(_STOPPED)


def _saved(path: Path, call: Any) -> dict[str, Any] | None:
    """A saved part; None if it belongs to another call, or has no checksum yet (version 0.1)."""
    try:
        record = read_json(path)
        if record.get("call") != call or "sha256" not in record:
            return None
        if record["sha256"] != _digest(record.get("result")):
            raise ValueError(f"{path} is damaged: its result does not match its checksum")
    except ValueError as error:
        remedy = "remove it and repeat the command with --resume, which computes this part again"
        raise ValueError(f"{error}; {remedy}") from error
    return record


def _digest(result: Any) -> str:
    return hashlib.sha256(json.dumps(result).encode()).hexdigest()


def _call(part: Part, arguments: Mapping[str, Any]) -> Any:
    """What a result depends on, as JSON has it."""
    return json.loads(json.dumps([part.__module__, part.__qualname__, dict(arguments)]))


class _Pool:
    """Workers, and the names of the jobs that wait for one."""

    def __init__(self, function: Part, arguments: Arguments, jobs: int) -> None:
        self.function, self.arguments, self.jobs = function, arguments, jobs
        self.waiting = list(arguments)
        self.workers: list[Worker] = []
        self.stopping = False

    def assign(self) -> bool:
        """Give every idle worker a job, or let it go; False when no worker is left."""
        new = min(self.jobs - len(self.workers), len(self.waiting))
        self.workers += [Worker() for _ in range(new)]
        for worker in [worker for worker in self.workers if not worker.name]:
            if self.waiting:
                name = self.waiting.pop(0)
                worker.give(self.function, name, self.arguments[name])
            else:
                self.workers.remove(worker)
                worker.leave()
        return bool(self.workers)

    def listen(self) -> Iterator[tuple[str, float | Ended]]:
        """The messages that have arrived, with the names of the jobs."""
        heard = wait([worker.connection for worker in self.workers], POLL_SECONDS)
        for worker in [worker for worker in self.workers if worker.connection in heard]:
            name, message = worker.name, worker.receive()
            if worker.connection.closed:  # its process has ended
                self.workers.remove(worker)
                if self.stopping:  # as it was asked to
                    continue
            yield name, message

    def stop(self) -> None:
        """Ask every worker to save and to end, once: a second SIGTERM would not let it save."""
        if not self.stopping:
            self.stopping = True
            self.waiting.clear()
            for worker in self.workers:
                worker.process.terminate()

    def kill(self) -> None:
        """End every process at once."""
        for worker in self.workers:
            worker.process.kill()
            worker.leave()


class _Display:
    """One bar for everything, and one for each job that is going on.

    Where there is no terminal, a line for each job that has ended; a failure is always a line.
    """

    def __init__(self, jobs: int, finished: int, console: Console) -> None:
        self.console, self.jobs, self.finished = console, jobs + finished, finished
        self.progress = bars(console, "{task.fields[state]}")
        state = f"{finished}/{self.jobs}"
        self.whole = self.progress.add_task("all", total=self.jobs, completed=finished, state=state)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Display:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def show(self, name: str, message: float | Ended) -> None:
        """Show how much of a job is done, or that it has ended."""
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=1.0, state="")
        if isinstance(message, Ended):
            self.progress.remove_task(self.tasks.pop(name))
            self.finished += 1
            if message.error is not None or not self.console.is_terminal:
                outcome = "done" if message.error is None else f"failed: {message.reason}"
                self.console.print(
                    f"{name}: {outcome}", markup=False, highlight=False, soft_wrap=True
                )
        else:
            self.progress.update(self.tasks[name], completed=message, state=f"{message:.0%}")
        done = self.finished + sum(task.completed for task in self.progress.tasks[1:])
        self.progress.update(self.whole, completed=done, state=f"{self.finished}/{self.jobs}")


__all__ = ["Ended", "Part", "Report", "forget", "one_thread", "run_jobs", "run_parts"]
