"""Independent jobs in worker processes, with one live display.

A job that fails is reported and the others go on; a process that dies takes only its job with it.
SIGINT, SIGTERM and SIGHUP are passed on to the workers as SIGTERM, so that a job can save its state
first.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing.connection import wait

from rich.console import Console

from mlmcgrad.runs.display import Display
from mlmcgrad.runs.queues import Alone, Arguments, Job, Queue, Taken
from mlmcgrad.runs.signals import RESUME, Signals, Stopped
from mlmcgrad.runs.workers import POLL_SECONDS, Ended, Part, Worker, threads

_STOPPED = f"stopped, everything finished is saved; {RESUME}"


def run_jobs(
    function: Part,
    arguments: Arguments,
    jobs: int,
    console: Console,
    *,
    finished: int = 0,
    queue: Queue | None = None,
) -> Generator[Ended, None, None]:
    """Call a function for each named set of arguments, in processes; yield each job as it ends.

    Close the iterator if you leave it early (`contextlib.closing`): that ends the processes.

    Args:
        function: it must live in a module.
        arguments: keyword arguments of each job.
        jobs: processes.
        console: where the progress is shown.
        finished: jobs that were done before; the display counts them.
        queue: where the jobs come from, if other processes do them too; those are not yielded.

    Raises:
        Stopped: SIGINT, SIGTERM or SIGHUP, once every job has saved its state.
    """
    queue = queue or Alone(function, arguments)
    pool = _Pool(queue, jobs)
    with Signals() as signals, Display(len(arguments), finished, console) as display:
        try:
            while pool.assign():
                display.others(queue.ended(), () if pool.workers else queue.hosts())
                for name, message in pool.listen():
                    if isinstance(message, Ended) and isinstance(message.result, Taken):
                        queue.back(name)
                        display.drop(name)
                        continue
                    display.show(name, message)
                    if isinstance(message, Ended):
                        yield message
                if signals.number is not None:
                    pool.stop()
        finally:  # also if this process has to end at once
            pool.kill()
    signals.raise_stopped(_STOPPED)


def run_here(
    function: Part,
    arguments: Arguments,
    console: Console,
    *,
    finished: int,
    queue: Queue | None = None,
) -> Generator[Ended, None, None]:
    """As `run_jobs`, one after another in this process, where an error of a job is raised."""
    queue = queue or Alone(function, arguments)
    with Signals() as signals, one_thread(), Display(len(arguments), finished, console) as display:
        while True:
            try:
                with signals.at_once():
                    job = _wait(queue, display)
                    if job is None:
                        break
                    report = partial(display.show, job.name)
                    ended = Ended(job.name, job.function(report, **job.arguments))
            except Stopped as stopped:
                raise Stopped(stopped.number, _STOPPED) from None
            if isinstance(ended.result, Taken):
                queue.back(job.name)
                display.drop(job.name)
                continue
            display.show(job.name, ended)
            yield ended
    signals.raise_stopped(_STOPPED)


def _wait(queue: Queue, display: Display) -> Job | None:
    """The next job, or None when none is left."""
    while (job := queue.next()) is None and queue.left():
        display.others(queue.ended(), queue.hosts())
        time.sleep(POLL_SECONDS)
    display.others(queue.ended(), ())
    return job


def one_thread() -> AbstractContextManager[None]:
    """Keep torch to one thread: on small tensors more of them only wait for one another."""
    return threads(1)


class _Pool:
    """Workers, and the queue of their jobs."""

    def __init__(self, queue: Queue, jobs: int) -> None:
        self.queue, self.jobs = queue, jobs
        self.workers: list[Worker] = []
        self.stopping = False

    def assign(self) -> bool:
        """Give every idle worker a job, or let it go; False when nothing is left to do."""
        for worker in [worker for worker in self.workers if not worker.name]:
            if (job := self.queue.next()) is not None:
                worker.give(job.function, job.name, job.arguments)
            else:
                self.workers.remove(worker)
                worker.leave()
        while len(self.workers) < self.jobs and (job := self.queue.next()) is not None:
            self.workers.append(Worker())
            self.workers[-1].give(job.function, job.name, job.arguments)
        return bool(self.workers) or self.queue.left()

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
        self.queue.clear()  # again and again: a job may have come back
        if not self.stopping:
            self.stopping = True
            for worker in self.workers:
                worker.process.terminate()

    def kill(self) -> None:
        """End every process at once."""
        for worker in self.workers:
            worker.process.kill()
            worker.leave()
