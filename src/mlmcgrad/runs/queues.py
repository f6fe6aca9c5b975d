"""Which job comes next: of a list, or of those that no other process has.

`Alone` is the list of a process that has the run folder for itself. `Shared` is that of one of many
processes, on one machine or on several, that share a folder by claims: a job is given to a worker,
which claims it; if another process was quicker, the worker says so and the job is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from mlmcgrad.runs.claims import LostError, Watch, take
from mlmcgrad.runs.workers import Part, Report

Arguments: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Keyword arguments by the name of a job."""

_LOOK_SECONDS = 0.5  # between two looks at a job that another process has


class Job(NamedTuple):
    """What a worker is to do."""

    name: str
    function: Part
    arguments: Mapping[str, Any]


class Taken:
    """The result of a job that another process does."""


class Queue(Protocol):
    """Where a pool gets its jobs from."""

    def next(self) -> Job | None:
        """A job that can be done now."""

    def back(self, name: str) -> None:
        """A job was not done: another process has it."""

    def clear(self) -> None:
        """Forget the jobs that are left."""

    def left(self) -> bool:
        """Whether there are jobs that this process has to do, or to wait for."""

    def ended(self) -> Sequence[str]:
        """The jobs that other processes have ended since the last call."""

    def hosts(self) -> Sequence[str]:
        """For each job that is left, where it is being done."""


class Alone:
    """All jobs, in their order."""

    def __init__(self, function: Part, arguments: Arguments) -> None:
        self._function, self._waiting = function, dict(arguments)

    def next(self) -> Job | None:
        """The first one that is left."""
        if not self._waiting:
            return None
        name = next(iter(self._waiting))
        return Job(name, self._function, self._waiting.pop(name))

    def back(self, name: str) -> None:
        """It does not happen."""
        raise AssertionError(name)

    def clear(self) -> None:
        """Forget the jobs that are left."""
        self._waiting.clear()

    def left(self) -> bool:
        """Whether there are any."""
        return bool(self._waiting)

    def ended(self) -> Sequence[str]:
        """None."""
        return ()

    def hosts(self) -> Sequence[str]:
        """None."""
        return ()


class Shared:
    """The jobs of a run folder that nobody has done and nobody is doing.

    Args:
        function: what a job calls while it has its claim; it must not do again what is done.
        arguments: of each job.
        folder: the run folder.
        done: whether a job is done, by whichever process.
    """

    def __init__(
        self, function: Part, arguments: Arguments, folder: Path, done: Callable[[str], bool]
    ) -> None:
        self._function, self._arguments, self._done = function, arguments, done
        self._watch = Watch(folder)
        self._waiting = dict.fromkeys(arguments, "")  # names, and the hosts that have them
        self._looked: dict[str, float] = {}
        self._ended: list[str] = []

    def next(self) -> Job | None:
        """The first one that is free."""
        for name in list(self._waiting):
            if time.monotonic() - self._looked.get(name, -_LOOK_SECONDS) < _LOOK_SECONDS:
                continue
            self._looked[name] = time.monotonic()
            if self._done(name):
                del self._waiting[name]
                self._ended.append(name)
                continue
            sight = self._watch.look(name)
            if sight.free:
                del self._waiting[name]
                values = {"claim": sight.path, "function": self._function}
                return Job(name, claimed, {**values, "arguments": self._arguments[name]})
            self._waiting[name] = sight.host
        return None

    def back(self, name: str) -> None:
        """Wait for a job that another process has."""
        self._waiting[name] = ""

    def clear(self) -> None:
        """Forget the jobs that are left."""
        self._waiting.clear()

    def left(self) -> bool:
        """Whether somebody else has jobs that are not done."""
        return bool(self._waiting)

    def ended(self) -> Sequence[str]:
        """The jobs that other processes have done since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def hosts(self) -> Sequence[str]:
        """Where the jobs are done that are left."""
        return [host for host in self._waiting.values() if host]


def claimed(
    report: Report, *, claim: Path, function: Part, arguments: Mapping[str, Any]
) -> Any | Taken:
    """Do a job with its claim; `Taken` if another process has it, or takes it on the way."""
    held = take(claim)
    if held is None:
        return Taken()
    with held:

        def checked(share: float) -> None:
            held.check()
            report(share)

        try:
            return function(checked, **arguments)
        except LostError:
            return Taken()
