"""Runs the independent parts of an experiment in processes, with one live progress display.

Every part that is finished is saved at once, under a name that the settings determine: a run that
was interrupted, or killed, finds its finished parts again when it is started again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import queue
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mlmcgrad.runs import folder as records

Report = Callable[[float], None]
Part = Callable[..., Any]
"""`part(report, **arguments)`: a function of a module; `report(share)` says how much is done."""

_POLL_SECONDS = 0.2


def run_parts(
    part: Part,
    arguments: Mapping[str, Mapping[str, Any]],
    folder: Path,
    jobs: int,
    console: Console,
) -> dict[str, Any]:
    """Run a part for each named set of arguments and return their results by name.

    Args:
        part: the function; it must live in a module, its results must fit into JSON.
        arguments: keyword arguments of each part; numbers and strings.
        folder: run folder; finished parts wait in a folder below it until `forget` is called.
        jobs: processes; 1 runs everything here.
        console: where the progress is shown.
    """
    store = folder / f"parts-{_fingerprint(part, arguments)}"
    results = {
        name: records.read_json(path)
        for name in arguments
        if (path := store / f"{name}.json").exists()
    }
    todo = {name: values for name, values in arguments.items() if name not in results}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bars = {
            name: progress.add_task(name, total=1.0, completed=int(name in results))
            for name in arguments
        }

        def show(name: str, share: float) -> None:
            progress.update(bars[name], completed=share)

        def keep(name: str, result: Any) -> None:
            records.write_json(store / f"{name}.json", result)
            results[name] = records.read_json(store / f"{name}.json")
            show(name, 1.0)

        if jobs == 1 or len(todo) <= 1:
            with one_thread():
                for name, values in todo.items():
                    keep(name, part(lambda share, name=name: show(name, share), **values))
        else:
            _in_processes(part, todo, jobs, show, keep)
    return {name: results[name] for name in arguments}


def forget(folder: Path) -> None:
    """Remove the saved parts, when everything that came of them is written."""
    for store in folder.glob("parts-*"):
        shutil.rmtree(store, ignore_errors=True)


def _in_processes(
    part: Part,
    todo: Mapping[str, Mapping[str, Any]],
    jobs: int,
    show: Callable[[str, float], None],
    keep: Callable[[str, Any], None],
) -> None:
    # spawn: a forked process would inherit torch's threads in an undefined state
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        pool = ProcessPoolExecutor(jobs, mp_context=context)
        try:
            running: dict[Future[Any], str] = {
                pool.submit(_work, part, name, dict(values), messages): name
                for name, values in todo.items()
            }
            while running:
                done, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                _drain(messages, show)
                for future in done:
                    keep(running.pop(future), future.result())
        finally:
            # Also after Ctrl-C: what is finished is saved, what is not started never starts.
            pool.shutdown(wait=False, cancel_futures=True)


def _work(part: Part, name: str, values: dict[str, Any], messages: Any) -> Any:
    with one_thread():
        return part(lambda share: messages.put((name, share)), **values)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: on small tensors more of them only wait for one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _drain(messages: Any, show: Callable[[str, float], None]) -> None:
    while True:
        try:
            show(*messages.get_nowait())
        except queue.Empty:
            return


def _fingerprint(part: Part, arguments: Mapping[str, Mapping[str, Any]]) -> str:
    text = json.dumps([part.__module__, {k: dict(v) for k, v in arguments.items()}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


__all__ = ["Part", "Report", "forget", "one_thread", "run_parts"]
