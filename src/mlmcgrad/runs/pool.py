"""Parts of a run: jobs whose results are saved one by one, so that none is computed twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from mlmcgrad.runs.folder import PARTS, SUMMARY, read_json, write_json
from mlmcgrad.runs.jobs import one_thread, run_here, run_jobs
from mlmcgrad.runs.queues import Arguments, Shared
from mlmcgrad.runs.signals import RESUME
from mlmcgrad.runs.workers import Ended, Part, Report


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
    saved = {name: _saved(folder, name, part, values) for name, values in arguments.items()}
    results = {name: record["result"] for name, record in saved.items() if record is not None}
    todo = {name: values for name, values in arguments.items() if name not in results}
    with closing(_results(part, todo, jobs, console, finished=len(results))) as computed:
        for name, result in computed:
            results[name] = _save(folder, name, part, arguments[name], result)
    return {name: results[name] for name in arguments}


def share_parts(
    part: Part, arguments: Arguments, folder: Path, jobs: int, console: Console
) -> None:
    """Run the parts that no other process runs, and wait until all are saved.

    Any number of processes call this with the same arguments, on machines that share the folder.
    Each part is claimed before it is run; one that was run twice, because its process was taken for
    dead, is saved with the same numbers.

    Args:
        part: as for `run_parts`; so are the others, and what is raised.
        arguments: keyword arguments of each part.
        folder: run folder; its summary, once it is there, says that all parts are done.
        jobs: processes on this machine.
        console: where the progress is shown.
    """

    def done(name: str) -> bool:
        return _known(folder, name, part, arguments[name])

    todo = {
        name: {"folder": folder, "name": name, "part": part, "values": values}
        for name, values in arguments.items()
        if not done(name)
    }
    queue = Shared(_compute, todo, folder, done)
    finished = len(arguments) - len(todo)
    with closing(_results(_compute, todo, jobs, console, finished=finished, queue=queue)) as ended:
        for _ in ended:
            pass


def forget(folder: Path, names: Iterable[str]) -> None:
    """Remove the saved parts of these names, once the results of the whole run are written."""
    for name in names:
        (folder / PARTS / f"{name}.json").unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or holds files that are not ours
        (folder / PARTS).rmdir()


def _results(
    function: Part, arguments: Arguments, jobs: int, console: Console, **options: Any
) -> Generator[tuple[str, Any], None, None]:
    """The results of jobs, in processes or in this one; an error ends them all."""
    several = min(jobs, len(arguments)) > 1
    ended = (
        run_jobs(function, arguments, jobs, console, **options)
        if several
        else run_here(function, arguments, console, **options)
    )
    with closing(ended):
        for job in ended:
            if isinstance(job.error, ChildProcessError):
                raise ChildProcessError(f"{job.name}: {job.error}; {RESUME}")
            if job.error is not None:
                raise job.error
            yield job.name, job.result


def _compute(
    report: Report, *, folder: Path, name: str, part: Part, values: Mapping[str, Any]
) -> None:
    """Run a part and save its result, unless that is done."""
    if _known(folder, name, part, values):
        return
    result = part(report, **values)
    report(1.0)  # raises if the part was taken over
    _save(folder, name, part, values, result)


def _known(folder: Path, name: str, part: Part, values: Mapping[str, Any]) -> bool:
    """Whether a part was done; when the summary is written, the parts are forgotten."""
    return _saved(folder, name, part, values) is not None or (folder / SUMMARY).exists()


def _save(folder: Path, name: str, part: Part, values: Mapping[str, Any], result: Any) -> Any:
    result = json.loads(json.dumps(result))
    record = {"call": _call(part, values), "result": result, "sha256": _digest(result)}
    write_json(folder / PARTS / f"{name}.json", record)
    return result


def _saved(folder: Path, name: str, part: Part, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """A saved part; None if it belongs to another call, or has no checksum yet (version 0.1)."""
    path = folder / PARTS / f"{name}.json"
    try:
        record = read_json(path)
        if record.get("call") != _call(part, values) or "sha256" not in record:
            return None
        if record["sha256"] != _digest(record.get("result")):
            raise ValueError(f"{path} is damaged: its result does not match its checksum")
    except FileNotFoundError:
        return None
    except ValueError as error:
        remedy = "remove it and repeat the command with --resume, which computes this part again"
        raise ValueError(f"{error}; {remedy}") from error
    return record


def _digest(result: Any) -> str:
    return hashlib.sha256(json.dumps(result).encode()).hexdigest()


def _call(part: Part, arguments: Mapping[str, Any]) -> Any:
    """What a result depends on, as JSON has it."""
    return json.loads(json.dumps([part.__module__, part.__qualname__, dict(arguments)]))


__all__ = [
    "Ended",
    "Part",
    "Report",
    "forget",
    "one_thread",
    "run_jobs",
    "run_parts",
    "share_parts",
]
