"""Which modules are changed, and which tests judge them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

_CORE = (
    "tests/test_estimators*.py",
    "tests/test_enumeration*.py",
    "tests/test_backward.py",
    "tests/test_gradient*.py",
)
_SMALL = ("levels", "measure", "lengths", "checks", "schedules", "store", "files", "finish")
# For the modules of a folder ("" is the core), beside their doctests.
TESTS = {
    "": (*(f"tests/test_{name}.py" for name in _SMALL), *_CORE),
    "kernels": (
        "tests/kernels/test_[!m]*.py",
        "tests/kernels/test_metropolis.py",
        "tests/kernels/test_metropolis_decision.py",
        "tests/test_store.py",
        *_CORE[1:],
    ),
    "optim": ("tests/optim",),
    "theory": ("tests/theory",),
    "iwae": ("tests/iwae",),
    "diagnostics": ("tests/diagnostics",),
    "distributed": ("tests/distributed/test_[!p]*.py", "tests/paper/training/test_sharded.py"),
    "mixed": (
        *(f"tests/mixed/test_{name}.py" for name in ("columns", "design", "parameters")),
        *(f"tests/mixed/test_{name}*.py" for name in ("formula", "families", "grouped", "crossed")),
        *(f"tests/mixed/test_{name}*.py" for name in ("bases", "inference", "prediction")),
        "tests/mixed/test_result.py",
    ),
    "paper/training": ("tests/paper/training/test_trainer*.py",),
    "paper/experiments": ("tests/paper/experiments/test_accuracy*.py",),
    "paper/experiments/reproduce": (
        "tests/paper/experiments/reproduce/test_claims.py",
        "tests/paper/experiments/reproduce/test_findings.py",
    ),
}
# Not planted: each change would be compiled again, which takes 20 seconds;
# `tests/kernels/test_metropolis_compiled.py` compares the results with those of the plain kernels.
COMPILED = re.compile(
    r"(Compiled\b|_compile\b|_make_chains_symbolic|_two_rows|_one_of_two|_explain|: 4 \* STRIDE|"
    r": 8 \* _STRIDE_OF_ONE)"
)
# Of these folders only the mathematics.
_SOME = {
    "": ("_checks", "_files", "backward", "estimators", "gradient", *_SMALL),
    "distributed": ("shards",),
    "mixed": (
        *("bases", "columns", "crossed", "design", "families", "formula", "grouped"),
        *("inference", "parameters", "prediction"),
    ),
    "paper/training": ("trainer",),
    "paper/experiments": ("accuracy",),
    "paper/experiments/reproduce": ("claims", "findings"),
}


class Module:
    """A module that is to be changed: where it is, and what became of its changes."""

    def __init__(self, path: Path, sources: Path) -> None:
        inside = path.relative_to(sources)
        self.path, self.folder = path, inside.parent.as_posix().removeprefix(".")
        self.name = inside.with_suffix("").as_posix()
        self.imported = ".".join(path.relative_to(sources.parent).with_suffix("").parts)
        # Its own doctests, and for example tests/kernels/test_isir.py.
        test = Path("tests", inside.parent, f"test_{inside.stem.lstrip('_')}").as_posix()
        self.mirrored = [path.relative_to(sources.parent.parent).as_posix(), test]
        self.count: Counter[str] = Counter()
        self.survivors: dict[int, str] = {}


def modules(sources: Path, patterns: list[str]) -> Iterator[Module]:
    """The modules of a package whose names fit one of the patterns, folder by folder."""
    for folder in TESTS:
        for path in sorted((sources / folder).glob("*.py")):
            module = Module(path, sources)
            chosen = not patterns or any(fnmatch(module.name, pattern) for pattern in patterns)
            if chosen and path.stem != "__init__" and path.stem in _SOME.get(folder, (path.stem,)):
                yield module
