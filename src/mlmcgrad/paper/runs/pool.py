"""Independent jobs on a `concurrent.futures` executor, with progress bars.

    --jobs 1          one after another in this process
    --jobs N          in N processes of this machine
    --dask ADDRESS    on the workers of a Dask cluster; `local:N` starts one with N processes

A job that fails is reported and the others continue. On SIGINT, SIGTERM or SIGHUP the worker
processes get a SIGTERM, so that a training can write a checkpoint first.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from mlmcgrad.paper.runs.folder import PARTS, read_json, write_json
from mlmcgrad.paper.runs.process import (
    REQUESTS,
    RESUME,
    Signals,
    Stopped,
    bars,
    interruptible,
    threads,
)

Report: TypeAlias = Callable[..., None]
"""`report(share, text="")` shows which share of a job is done, and a short text beside its bar."""
Part: TypeAlias = Callable[..., Any]
"""`part(report, **arguments)`: a function of a module."""
Arguments: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Keyword arguments by the name of a job."""
_Show: TypeAlias = Callable[[Mapping[str, tuple[float, str]]], None]

_SAVED = f"everything finished is saved; {RESUME}"
_POLL_SECONDS = 0.2
_RETRIES = 2  # of a job on Dask that could not read or write a file
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # numbers may depend on it
# Settings of glibc, unless the user has chosen them: other systems do not read them.
_GLIBC, _KEPT_BYTES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "1000000000"
# spawn: a forked process would inherit torch's threads in an undefined state
_SPAWN = multiprocessing.get_context("spawn")


class _State(ctypes.Structure):
    """Progress of a job, in memory that all processes share."""

    _fields_ = (("share", ctypes.c_double), ("text", ctypes.c_char * 64))


_STATES: Any = []  # in a worker process: one for each job


@dataclass(frozen=True)
class Ended:
    """A job that has ended, with its result or with an error."""

    name: str
    result: Any = None
    error: BaseException | None = None

    @property
    def reason(self) -> str | None:
        """Why it failed; None if it did not."""
        return None if self.error is None else str(self.error) or type(self.error).__name__


def run_jobs(
    function: Part,
    arguments: Arguments,
    console: Console,
    *,
    jobs: int,
    dask: str = "",
    finished: int = 0,
) -> Generator[Ended, None, None]:
    """Call a function for each named set of arguments; yield each job as it ends.

    Close the iterator if you leave it early (`contextlib.closing`): that ends the processes.

    Args:
        function: a module-level function, called as `function(report, **arguments)`.
        arguments: the keyword arguments for each job. Cluster workers have a different working
            directory: paths must be absolute.
        console: where the progress is shown.
        jobs: processes; 1 runs everything in this one.
        dask: address of a Dask scheduler, or `local:N`; empty runs on this machine.
        finished: jobs that were done before; the display counts them.

    Raises:
        Stopped: SIGINT, SIGTERM or SIGHUP, once every job has saved its state.
        ChildProcessError: a process was killed; the other jobs have saved their state.
    """
    progress = bars(console, "{task.fields[text]}")
    total = len(arguments) + finished
    every = progress.add_task("all", total=total, text="")
    tasks: dict[str, Any] = {}  # of the jobs that are running
    shares: dict[str, float] = {}

    def show(states: Mapping[str, tuple[float, str]]) -> None:
        for name, (share, text) in states.items():
            shares[name] = share
            if share > 0.0 and name not in tasks:
                tasks[name] = progress.add_task(name, total=1.0, text="")
            if share > 0.0:
                progress.update(tasks[name], completed=share, text=text)
            elif name in tasks:
                progress.remove_task(tasks.pop(name))
        done = finished + sum(shares.values())
        progress.update(every, completed=done, text=f"{finished}/{total} done")

    with Signals() as signals, progress:
        if dask and arguments:
            ended = _on_dask(function, arguments, dask, console, signals)
        elif min(jobs, len(arguments)) > 1:
            ended = _in_processes(function, arguments, jobs, show, signals)
        else:
            ended = _here(function, arguments, show)
        with closing(ended):
            for job in ended:
                finished += 1
                if job.error is not None or not console.is_terminal:
                    status = "done" if job.error is None else f"failed: {job.reason}"
                    _print(console, f"{job.name}: {status}")
                show({job.name: (0.0, "")})
                yield job
        signals.raise_stopped(f"stopped, {_SAVED}")


def run_parts(
    part: Part, arguments: Arguments, folder: Path, console: Console, *, jobs: int, dask: str = ""
) -> dict[str, Any]:
    """Run a part for each named set of arguments and return their results by name.

    Every result is saved when it is there, with a checksum of it and of its call: a run that is
    started again computes only what is missing or damaged.

    Args:
        part: a function of a module whose results fit into JSON.
        arguments: keyword arguments of each part; numbers and strings.
        folder: run folder; the results are in its subfolder `parts` until `forget` is called.
        console: where the progress is shown.
        jobs: as for `run_jobs`.
        dask: as for `run_jobs`.

    Raises:
        Stopped: SIGINT, SIGTERM or SIGHUP; the finished parts are saved.
        ChildProcessError: a process was killed; the finished parts are saved.
    """
    where = part.__module__, part.__qualname__
    calls = {name: [*where, values] for name, values in arguments.items()}
    paths = {name: folder / PARTS / f"{name}.json" for name in arguments}
    results = {}
    for name, path in paths.items():
        with suppress(FileNotFoundError, KeyError, ValueError):
            record = read_json(path)
            if record["sha256"] == _digest(calls[name], record["result"]):
                results[name] = record["result"]
    todo = {name: values for name, values in arguments.items() if name not in results}
    ended = run_jobs(part, todo, console, jobs=jobs, dask=dask, finished=len(results))
    with closing(ended):
        for job in ended:
            if job.error is not None:
                raise job.error
            results[job.name] = result = json.loads(json.dumps(job.result))
            digest = _digest(calls[job.name], result)
            write_json(paths[job.name], {"result": result, "sha256": digest})
    return {name: results[name] for name in arguments}


def forget(folder: Path, names: Iterable[str]) -> None:
    """Remove the saved parts of these names, once the results of the whole run are written."""
    for name in names:
        (folder / PARTS / f"{name}.json").unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or holds files that are not ours
        (folder / PARTS).rmdir()


def _print(console: Console, line: str) -> None:
    """Print a line above the bar."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _here(function: Part, arguments: Arguments, show: _Show) -> Generator[Ended, None, None]:
    with threads(1):
        for name, values in arguments.items():

            def report(share: float, text: str = "", name: str = name) -> None:
                show({name: (share, text)})

            try:
                with interruptible():
                    ended = Ended(name, function(report, **values))
            except Stopped as stopped:
                raise Stopped(stopped.number, f"stopped, {_SAVED}") from None
            except Exception as error:
                ended = Ended(name, error=error)
            yield ended


def _in_processes(
    function: Part, arguments: Arguments, jobs: int, show: _Show, signals: Signals
) -> Generator[Ended, None, None]:
    states = _SPAWN.RawArray(_State, len(arguments))
    pool = ProcessPoolExecutor(min(jobs, len(arguments)), _SPAWN, _begin, (states,))

    def poll() -> None:
        texts = [(state.share, state.text.decode(errors="ignore")) for state in states]
        show(dict(zip(arguments, texts, strict=True)))

    others, complete = multiprocessing.active_children(), False
    try:
        with _starting():
            futures = {
                pool.submit(_in_worker, i, name, function, dict(values)): name
                for i, (name, values) in enumerate(arguments.items())
            }
            # The pool watches the processes that it knew at the last submit: without one more, it
            # would not notice that the last process was killed.
            pool.submit(_nothing, 0.0)
        yield from _completed(futures, signals, poll)
        complete = signals.number is None
    finally:
        if not complete:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
        pool.shutdown(cancel_futures=True)


def _on_dask(
    function: Part, arguments: Arguments, address: str, console: Console, signals: Signals
) -> Generator[Ended, None, None]:
    from distributed import Client, LocalCluster

    with ExitStack() as stack:
        cluster: Any = address
        if address.startswith("local:"):
            count, options = int(address[6:]), {"threads_per_worker": 1, "dashboard_address": ":0"}
            cluster = stack.enter_context(LocalCluster(n_workers=count, **options))
        client = stack.enter_context(Client(cluster))
        _print(console, f"Dask dashboard: {client.dashboard_link}")
        executor = client.get_executor(retries=_RETRIES, pure=False)
        try:
            futures = {
                executor.submit(_in_cluster, name, function, dict(values)): name
                for name, values in arguments.items()
            }
            yield from _completed(futures, signals, lambda: None)
        finally:
            executor.shutdown(wait=False)  # cancels the jobs that are left


def _completed(
    futures: Mapping[Future[Ended], str], signals: Signals, show: Callable[[], None]
) -> Iterator[Ended]:
    """Yield the jobs as they end, until all have or a signal arrives."""
    pending = set(futures)
    while pending and signals.number is None:
        done, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
        show()
        for future in [future for future in futures if future in done]:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, BrokenProcessPool) or future.cancelled():
                text = "a worker process was killed, as the system does when memory runs out"
                raise ChildProcessError(f"{text}; {_SAVED}") from error
            yield future.result() if error is None else Ended(futures[future], error=error)


@contextmanager
def _starting() -> Iterator[None]:
    """Start processes with one thread, that get no signal before `_begin`.

    They keep the memory they free.
    """
    earlier = dict(os.environ)
    os.environ.update({**dict.fromkeys(_GLIBC, _KEPT_BYTES), **earlier, **_ONE_THREAD})
    resource_tracker.ensure_running()  # as starting a process does; it would unblock signals
    before = _mask("SIG_BLOCK", REQUESTS)
    try:
        yield
    finally:
        _mask("SIG_SETMASK", before)
        for name in {*_GLIBC, *_ONE_THREAD} - earlier.keys():
            del os.environ[name]
        os.environ.update(earlier)


def _mask(how: str, numbers: Iterable[int]) -> Iterable[int]:
    """Block or unblock signals, where the system can (not on Windows); return those blocked."""
    if not hasattr(signal, "pthread_sigmask"):
        return ()
    return signal.pthread_sigmask(getattr(signal, how), numbers)


def _begin(states: Any) -> None:
    """Prepare a worker process: Ctrl-C is for its parent, and it ends with its parent."""
    global _STATES
    _STATES = states
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _mask("SIG_UNBLOCK", REQUESTS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(1)  # as if this process had been killed too: its files are written atomically


def _in_worker(index: int, name: str, function: Part, values: dict[str, Any]) -> Ended:
    """Run a job in a worker process that exits if a signal stops the job."""
    state = _STATES[index]

    def report(share: float, text: str = "") -> None:
        state.share, state.text = share, text.encode()[:64]

    try:
        with Signals(), interruptible():
            return _job(name, function, report, values)
    except Stopped as stopped:
        os._exit(stopped.code)
    finally:
        state.share = 0.0


def _in_cluster(name: str, function: Part, values: dict[str, Any]) -> Ended:
    """Do a job on a worker of Dask."""
    with threads(1):
        return _job(name, function, _nothing, values)


def _job(name: str, function: Part, report: Report, values: dict[str, Any]) -> Ended:
    """Do a job in another process; an error has its traceback as a note."""
    try:
        return Ended(name, function(report, **values))
    except OSError:  # Dask tries again: a file system that is shared may fail for a moment
        raise
    except Exception as exception:
        error = exception
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # it could not be sent
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(traceback.format_exc())
        return Ended(name, error=error)


def _nothing(share: float, text: str = "") -> None:
    """Do nothing."""


def _digest(call: Any, result: Any) -> str:
    return hashlib.sha256(json.dumps([call, result]).encode()).hexdigest()
