"""Which modules are changed, and which tests judge them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

_CORE = (
    "tests/estimators",
    "tests/test_enumeration*.py",
    "tests/test_backward.py",
    "tests/test_gradient*.py",
    "tests/test_estimate.py",
)
_SMALL = ("hotelling", "levels", "measure", "plan", "ranges", "rounding", "schedules", "store")
# For the modules of a folder ("" is the core), beside their doctests.
TESTS = {
    "": (*(f"tests/test_{name}.py" for name in _SMALL), *_CORE),
    "estimators": _CORE,
    "kernels": (
        "tests/kernels/test_[!c]*.py",
        "tests/kernels/test_conformance.py",
        "tests/test_store.py",
        *_CORE[1:],
    ),
    "optim": ("tests/optim",),
    "theory": ("tests/theory",),
    "iwae": ("tests/iwae",),
    "diagnostics": ("tests/diagnostics",),
    "distributed": ("tests/distributed/test_[!p]*.py", "tests/training/test_sharded.py"),
    "training": ("tests/training/test_trainer*.py",),
    "experiments/reproduce": ("tests/experiments/reproduce/test_c*.py",),
}
# Not planted: every change would be compiled anew, for 20 seconds; `tests/kernels/test_compiled.py`
# compares its numbers with those of the plain kernels.
_COMPILED = "kernels/_compiled"
# Of these folders only the mathematics.
_SOME = {
    "": ("backward", "estimate", "gradient", *_SMALL),
    "distributed": ("deal", "share", "shards", "spent"),
    "training": ("trainer",),
    "experiments/reproduce": ("claims", "compare", "curves"),
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
            if module.name == _COMPILED:
                continue
            if chosen and path.stem != "__init__" and path.stem in _SOME.get(folder, (path.stem,)):
                yield module
