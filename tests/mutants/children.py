"""Forks of a process that has loaded what is slow to load, but not the project.

A child imports the project with some modules in another form than on the disk, which is never
touched, and runs pytest.
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import pytest


@contextmanager
def warm() -> Iterator[None]:
    """Load what is slow to load, so that a child takes a fraction of a second to begin."""
    for name in ("torch", "numpy", "scipy.stats", "hypothesis.strategies"):
        if find_spec(name.partition(".")[0]):
            import_module(name)
    gc.collect()
    gc.freeze()  # the children would go through all of torch again and again
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.dont_write_bytecode = False
    with tempfile.TemporaryDirectory() as folder:
        sys.pycache_prefix = folder  # compiled once, and apart from the project
        yield


def fork(run: Callable[[], int], said: Path = Path(os.devnull)) -> int:
    """The number of a child that runs a function, writes to a file and ends with the result."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        output = os.open(said, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(output, descriptor)
        code = run()
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_tests(root: Path, tmp: Path, tests: Sequence[str], finder: Finder, plugin: object) -> int:
    """In a child: pytest up to the first failure."""
    os.chdir(root)
    sys.path[:0] = [str(root / "src"), str(root)]
    finder.install()
    switched_off = [f"-pno:{name}" for name in ("cacheprovider", "faulthandler")]
    loaded = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
    plugins = ["-ppytest_timeout", *switched_off]  # its option is in the configuration
    arguments = ["-x", f"--basetemp={tmp}", loaded, *plugins, *tests]
    return int(pytest.main(arguments, plugins=[finder, plugin]))


def file_of(test: str) -> str:
    """The file of a test."""
    return test.split("::")[0]


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules before they are found on the disk, and loads them from another tree."""

    def __init__(self, tree: Callable[[str, Path], ast.Module | None]) -> None:
        self._tree = tree

    def install(self) -> None:
        """Come first among the finders."""
        sys.meta_path.insert(0, self)

    def pytest_configure(self) -> None:
        """Come before the finder of pytest, which loads the files that it was given itself."""
        self.install()

    def find_spec(self, fullname: str, path: Any = None, _: Any = None) -> ModuleSpec | None:
        """A module of which there is another tree."""
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        tree = self._tree(fullname, Path(spec.origin))
        if tree is None:
            return None
        spec.loader = _Loader(fullname, spec.origin)
        spec.loader.code = compile(tree, spec.origin, "exec", dont_inherit=True)
        return spec


class _Loader(SourceFileLoader):
    code: CodeType

    def get_code(self, _: str) -> CodeType:
        return self.code
