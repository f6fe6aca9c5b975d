"""`make mutants`: plants every small change in the mathematics and prints how many were noticed.

What survives is written to `build/mutants.toml`, and the command fails. Either a test is missing,
or no test can see the change: then its line goes to `equivalent.toml`, with the reason, and it is
not tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.mutants.changes import Change, changes
from tests.mutants.children import warm
from tests.mutants.judge import KILLED, SURVIVED, Task, judge
from tests.mutants.modules import COMPILED, TESTS, Module, modules
from tests.mutants.record import record

SURVIVORS = Path("build", "mutants.toml")
Names = dict[str, str]  # of changes, with the reason or ""


def main(arguments: list[str]) -> int:
    """Plant, judge, print; 1 if a change survives that is not known to be equivalent."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="like levels or theory/*; all if none is named")
    parser.add_argument("--sample", type=int, help="so many changes of each module, at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--again", action="store_true", help="only what survived the last time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2], help="the project")
    options = parser.parse_args(arguments)
    root: Path = options.root.resolve()
    sources = next(path.parent for path in (root / "src").glob("*/__init__.py"))
    wanted = list(modules(sources, options.modules))
    if not wanted:
        parser.error(f"no module is called {' or '.join(options.modules)}")
    equivalent = _read(root / "tests" / "mutants" / "equivalent.toml")
    before = _read(root / SURVIVORS) if options.again else None
    gone: list[str] = []
    _row("module", "tried", KILLED, SURVIVED, "equivalent")
    with warm():
        for folder, group in groupby(wanted, key=lambda module: module.folder):
            several = {module.path: module for module in group}
            tests = [str(path) for name in TESTS[folder] for path in sorted(root.glob(name))]
            calls = record(root, sources, [*tests, *map(str, several)])
            tasks = []
            for module in several.values():
                listed = equivalent.get(module.name, {})
                gone += [f"{module.name} {name}" for name in _gone(module, listed)]
                names = None if before is None else before.get(module.name, {})
                for i, change in _chosen(module, listed, names, options.sample, options.seed):
                    where, function = change.where, change.function
                    order = calls.order(module.path, where, function, module.mirrored)
                    tasks.append(Task(module.imported, module.path, i, change.name, order))
            for task, verdict in judge(root, tasks, options.jobs):
                _count(several[task.path], task, verdict)
    _show("all", sum((module.count for module in wanted), Counter()))
    for name in gone:
        _say(f"equivalent.toml names a change that does not exist: {name}")
    return int(_write_survivors(root, wanted) or bool(gone))


def _read(path: Path) -> dict[str, Names]:
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _changes(module: Module) -> list[Change]:
    return changes(module.path.read_text(encoding="utf-8"))


def _gone(module: Module, listed: Names) -> list[str]:
    return sorted(set(listed) - {change.name for change in _changes(module)})


def _chosen(
    module: Module, listed: Names, names: Names | None, sample: int | None, seed: int
) -> list[tuple[int, Change]]:
    """The changes to try, with their numbers: those not listed, or some of them."""
    every = [(i, c) for i, c in enumerate(_changes(module)) if not COMPILED.match(c.name)]
    some = [(i, change) for i, change in every if change.name not in listed]
    module.count["equivalent"] = len(every) - len(some)
    if names is not None:
        some = [(i, change) for i, change in some if change.name in names]
    if sample is not None:
        random.Random(f"{seed} {module.name}").shuffle(some)
        some = sorted(some[:sample], key=lambda numbered: numbered[0])
    module.count["tried"] = len(some)
    return some


def _count(module: Module, task: Task, verdict: str) -> None:
    module.count[verdict] += 1
    if verdict == SURVIVED:
        module.survivors[task.number] = task.name
        _say(f"  survived: {module.name} {task.name}")
    if module.count[KILLED] + module.count[SURVIVED] == module.count["tried"]:
        _show(module.name, module.count)


def _write_survivors(root: Path, tried: list[Module]) -> bool:
    """The file of survivors, in the form of `equivalent.toml`; True if there are any."""
    text = "".join(_survivors(tried))
    out = root / SURVIVORS
    out.parent.mkdir(exist_ok=True)
    out.write_text(text, encoding="utf-8")
    if text:
        _say(f"what survived is in {out.relative_to(root)}")
    return bool(text)


def _survivors(tried: list[Module]) -> Iterator[str]:
    for module in tried:
        names = [name for _, name in sorted(module.survivors.items())]
        lines = [f'{json.dumps(name, ensure_ascii=False)} = ""\n' for name in names]
        yield f'["{module.name}"]\n{"".join(lines)}\n' if lines else ""


def _show(name: str, count: Counter[str]) -> None:
    _row(name, *(count[column] for column in ("tried", KILLED, SURVIVED, "equivalent")))


def _row(name: str, *cells: object) -> None:
    _say(f"{name:32}" + "".join(f"{cell!s:>11}" for cell in cells))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
