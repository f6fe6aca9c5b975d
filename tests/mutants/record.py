"""Which functions of the project each test calls, and how long it takes, without any change."""

from __future__ import annotations

import ast
import builtins
import json
import os
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.changes import speaking
from tests.mutants.children import Finder, file_of, fork, run_tests

_HEARD = "_mutants_heard"  # a builtin that is told which function was called


@dataclass
class Calls:
    """What the tests call, and how long they take."""

    seconds: dict[str, float] = field(default_factory=dict)
    by_test: dict[str, set[str]] = field(default_factory=dict)  # "path function"
    by_file: dict[str, set[str]] = field(default_factory=dict)  # on import, and by shared fixtures

    def order(
        self, path: Path, where: str, function: bool, first: Sequence[str]
    ) -> dict[str, float]:
        """The tests that call a function, those first that are likely to fail.

        Args:
            path: of the module.
            where: the function; or a class, or "", of which any function counts.
            function: whether it is one.
            first: where the names of tests begin that are likely to fail.
        """
        inside = f"{path} {where}." if where else f"{path} "

        def touches(calls: set[str]) -> bool:
            if function:
                return f"{path} {where}" in calls
            return any(call.startswith(inside) for call in calls)

        def rank(test: str) -> tuple[bool, float]:
            return not any(test.startswith(name) for name in first), self.seconds[test]

        chosen = [
            test
            for test, calls in self.by_test.items()
            if touches(calls) or touches(self.by_file.get(file_of(test), set()))
        ]
        if not chosen and where and not function:  # a class without functions
            return self.order(path, "", False, first)
        return {test: self.seconds[test] for test in sorted(chosen, key=rank)}


def record(root: Path, sources: Path, tests: Sequence[str]) -> Calls:
    """Run tests without any change.

    Raises:
        RuntimeError: they fail, so that nothing can be learnt from them.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, said = Path(folder, "calls.json"), Path(folder, "said.txt")
        said.touch()
        recorder, tmp = _Recorder(sources, out), Path(folder, "tmp")
        finder = Finder(recorder.speaking)
        pid = fork(lambda: run_tests(root, tmp, tests, finder, recorder), said)
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError(f"the tests fail without any change:\n{said.read_text('utf-8')}")
        seconds, by_test, by_file = json.loads(out.read_text(encoding="utf-8"))
    sets = ({name: set(calls) for name, calls in table.items()} for table in (by_test, by_file))
    return Calls(seconds, *sets)


class _Recorder:
    """A plugin that listens to the functions of the project while tests run."""

    def __init__(self, sources: Path, out: Path) -> None:
        self._sources, self._out, self._calls = sources, out, Calls()
        self._file = ""
        self._now: set[str] = set()
        setattr(builtins, _HEARD, lambda function: self._now.add(function))

    def speaking(self, _: str, path: Path) -> ast.Module | None:
        """A module of the project, with functions that say when they are called."""
        if not path.is_relative_to(self._sources):
            return None
        return speaking(path.read_text(encoding="utf-8"), _HEARD, str(path))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Of a module of the project only the doctests: a function there may be called `tests`.
        items[:] = [
            item
            for item in items
            if isinstance(item, pytest.DoctestItem) or not item.path.is_relative_to(self._sources)
        ]

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        self._now = self._calls.by_file.setdefault(file_of(collector.nodeid), set())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._file = file_of(item.nodeid)
        self._now = self._calls.by_test.setdefault(item.nodeid, set())
        start = time.process_time()
        result = yield
        self._calls.seconds[item.nodeid] = round(time.process_time() - start, 2)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        before = self._now
        if fixturedef.scope != "function":
            self._now = self._calls.by_file.setdefault(self._file, set())
        result = yield
        self._now = before
        return result

    def pytest_sessionfinish(self) -> None:
        calls = self._calls
        tables = [{k: sorted(v) for k, v in t.items()} for t in (calls.by_test, calls.by_file)]
        self._out.write_text(json.dumps([calls.seconds, *tables]), encoding="utf-8")
