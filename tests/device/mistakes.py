"""Plants device mistakes one by one and prints those that no test of this folder notices.

    MLMCGRAD_DEVICE=standin python -m tests.device.mistakes                # some minutes
    MLMCGRAD_DEVICE=standin python -m tests.device.mistakes kernels --sample 5

A mistake is what one forgets: an argument `device=`, a `.to(…)` of a device, a `.cpu()`, a `ship`
or a `fetch`. Those that nothing can notice are in `harmless.toml`, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.children import Finder, fork, run_tests, warm

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "mlmcgrad"
HERE = Path(__file__).parent
# Folders of the library, with the tests that look at them, those that notice most first.
TESTS = {
    "": (
        *("measure", "kernels", "iwae", "store", "factors", "waits", "places"),
        *("diagnostics", "training"),
    ),
    "kernels": ("kernels", "measure", "waits", "places", "iwae", "diagnostics"),
    "iwae": ("iwae", "waits", "training"),
    "optim": ("optimizers", "training"),
}


@dataclass(frozen=True)
class Mistake:
    """A call of which something is left out."""

    module: str  # like kernels/isir
    name: str  # the function around it, and what is left out
    line: int

    @property
    def path(self) -> Path:
        """The file of the module."""
        return SOURCES / f"{self.module}.py"


class _Planter(ast.NodeTransformer):
    """Goes through a module, names all mistakes, and makes one of them."""

    def __init__(self, wanted: str | None = None) -> None:
        self.found: dict[str, int] = {}
        self._wanted, self._inside = wanted, ["module"]

    def _chosen(self, what: str, line: int) -> bool:
        name = f"{'.'.join(self._inside[1:]) or 'module'}: {what}"
        while name in self.found:
            name += " again"
        self.found[name] = line
        return name == self._wanted

    def _enter(self, node: ast.AST, name: str) -> ast.AST:
        self._inside.append(name)
        self.generic_visit(node)
        self._inside.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remember the name."""
        return self._enter(node, node.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Remember the name."""
        return self._enter(node, node.name)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """Leave out an entry "device" of options."""
        for place, key in enumerate(node.keys):
            named = isinstance(key, ast.Constant) and key.value == "device"
            if named and self._chosen(f'"device": {ast.unparse(node.values[place])}', node.lineno):
                del node.keys[place], node.values[place]
                break
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Leave out a part of a call, or the call around its argument."""
        what = ast.unparse(node)
        self.generic_visit(node)
        for keyword in node.keywords:
            given = keyword.arg == "device" and not isinstance(keyword.value, ast.Constant)
            if given and self._chosen(f"device={ast.unparse(keyword.value)}", node.lineno):
                node.keywords.remove(keyword)
                return node
        function = node.func
        name = function.id if isinstance(function, ast.Name) else ""
        moved: ast.expr | None = None
        if isinstance(function, ast.Attribute) and _moves(function.attr, what):
            moved = function.value
        elif name in ("ship", "fetch"):
            moved = node.args[0] if name == "ship" else ast.Tuple(node.args, ast.Load())
        return moved if moved is not None and self._chosen(what, node.lineno) else node


def _moves(method: str, call: str) -> bool:
    if method == "to":
        arguments = call.rpartition(".to(")[2]
        return not any(word in arguments for word in ("dtype", "_wide", "memory_format"))
    return method == "cpu"


def mistakes(module: str) -> list[Mistake]:
    """Return all mistakes that can be made in a module."""
    planter = _Planter()
    planter.visit(ast.parse((SOURCES / f"{module}.py").read_text(encoding="utf-8")))
    return [Mistake(module, name, line) for name, line in planter.found.items()]


def planted(mistake: Mistake) -> ast.Module:
    """Return the module with the mistake."""
    tree = ast.parse(mistake.path.read_text(encoding="utf-8"))
    before = copy.deepcopy(tree)
    changed: ast.Module = _Planter(mistake.name).visit(tree)
    assert ast.dump(before) != ast.dump(changed), mistake
    return ast.fix_missing_locations(changed)


def modules(wanted: list[str]) -> Iterator[str]:
    """Yield the modules of some folders or names, of all by default."""
    for folder in TESTS:
        for path in sorted((SOURCES / folder).glob("*.py")):
            name = str(path.relative_to(SOURCES).with_suffix(""))
            if not wanted or name in wanted or folder in wanted:
                yield name


def harmless() -> dict[str, dict[str, str]]:
    """Return the mistakes of each module that nothing can notice, with the reason."""
    return tomllib.loads((HERE / "harmless.toml").read_text(encoding="utf-8"))


def noticed(mistake: Mistake) -> bool:
    """Run the tests in a child with a mistake, up to the first failure."""
    folder = mistake.module.rpartition("/")[0]
    tests = [str(HERE / f"test_{name}.py") for name in TESTS[folder]]
    imported = "mlmcgrad." + mistake.module.replace("/", ".").removesuffix(".__init__")
    tree = planted(mistake)
    finder = Finder(lambda name, _: tree if name == imported else None)
    with tempfile.TemporaryDirectory() as tmp:
        pid = fork(lambda: run_tests(ROOT, Path(tmp), tests, finder, object()))
        _, status = os.waitpid(pid, 0)
    return status != 0


def main(arguments: list[str]) -> int:
    """Plant mistakes; 1 if one is not noticed that is not listed, or a listed one is gone."""
    parser = argparse.ArgumentParser(prog="python -m tests.device.mistakes", description=__doc__)
    parser.add_argument("modules", nargs="*", help="folders or modules, like kernels or measure")
    parser.add_argument("--sample", type=int, help="number of mistakes to try, at random")
    parser.add_argument("--listed", action="store_true", help="try the listed ones, not the others")
    options = parser.parse_args(arguments)
    reasons = harmless()
    every = [each for name in modules(options.modules) for each in mistakes(name)]
    tried = [m for m in every if (m.name in reasons.get(m.module, {})) == options.listed]
    if options.sample is not None:
        tried = random.Random(0).sample(tried, min(options.sample, len(tried)))
    unnoticed = 0
    with warm():
        for mistake in tried:
            if not noticed(mistake):
                unnoticed += 1
                _say(f"not noticed: {mistake.module}:{mistake.line} {mistake.name}")
    _say(f"{len(tried)} mistakes, {unnoticed} not noticed, {len(every) - len(tried)} not tried")
    return int(unnoticed > 0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
