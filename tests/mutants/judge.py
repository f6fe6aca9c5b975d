"""Runs the tests that matter against one change after the other.

A change is judged by the tests that call its function, the mirrored file before the others, the
fast ones before the slow ones, up to the first failure. A change outside of all functions is
judged by the tests that call any function of its class or module. A test that takes far longer
than without the change has noticed it, too.
"""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import pytest

from tests.mutants.changes import changed
from tests.mutants.children import Finder, file_of, fork, run_tests

KILLED, SURVIVED = "killed", "survived"
_MEMORY = 16 * 2**30  # address space of a child: a change may ask for far too much
_PATIENCE = 2.0  # seconds of processor time that a test may take longer than three times its own


@dataclass(frozen=True)
class Task:
    """A change, and the tests that are to notice it, in this order, with their seconds."""

    module: str
    path: Path
    number: int
    name: str
    tests: dict[str, float] = field(hash=False)


def judge(root: Path, tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, str]]:
    """Each task with its verdict, in the order in which they end."""
    waiting, running = list(reversed(tasks)), dict[int, tuple[Task, float]]()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop()
                if not task.tests:
                    yield task, SURVIVED
                    continue
                tmp = Path(folder, str(len(waiting)))
                pid = fork(lambda task=task, tmp=tmp: _try(root, tmp, task))  # type: ignore[misc]
                # Processor time is limited test by test; this is for one that waits for ever.
                running[pid] = task, time.monotonic() + 120.0 + 10.0 * sum(task.tests.values())
            pid, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
            if pid:
                task, _ = running.pop(pid)
                yield task, KILLED if status else SURVIVED
                continue
            for pid, (_, deadline) in running.items():
                if time.monotonic() > deadline:
                    os.killpg(pid, signal.SIGKILL)
            time.sleep(0.01)


def _try(root: Path, tmp: Path, task: Task) -> int:
    """In a child: the tests of a task with its change; 0 if none of them fails."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    tree = changed(task.path.read_text(encoding="utf-8"), task.number)
    finder = Finder(lambda name, _: tree if name == task.module else None)
    # To collect all files takes longer than to run the one that most likely fails.
    first = file_of(next(iter(task.tests)))
    for tests in (
        {test: s for test, s in task.tests.items() if file_of(test) == first},
        {test: s for test, s in task.tests.items() if file_of(test) != first},
    ):
        files = list(dict.fromkeys(map(file_of, tests)))
        if files and (code := run_tests(root, tmp, files, finder, _Choice(tests))):
            return code
    return 0


class _Choice:
    """A plugin that runs only the tests of a task, in their order, each within its time."""

    def __init__(self, tests: dict[str, float]) -> None:
        self._tests = tests

    def pytest_sessionstart(self) -> None:
        # That a property fails is enough: no smaller example is looked for.
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        now = hypothesis.settings.default
        hypothesis.settings.register_profile("mutants", now, phases=phases)
        hypothesis.settings.load_profile("mutants")
        signal.setitimer(signal.ITIMER_PROF, 60.0)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = {test: i for i, test in enumerate(self._tests)}
        items[:] = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        signal.setitimer(signal.ITIMER_PROF, _PATIENCE + 3.0 * self._tests[item.nodeid])
