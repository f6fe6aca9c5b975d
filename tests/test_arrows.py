"""Dependencies point one way: a module imports only from layers below its own."""

import ast
import re
from pathlib import Path

import pytest

import mlmcgrad
from tests.walks import WALKS

ROOT = Path(mlmcgrad.__file__).parent
LAYERS = [
    {"_checks", "_files", "seeds", "lengths", "measure"},
    {"schedules"},
    {"levels", "store", "optim", "theory"},
    {"kernels", "estimators"},
    {"backward", "problems"},
    {"gradient"},
    {"finish"},
    {"diagnostics", "distributed", "iwae", "mixed"},
    {"factors"},
    {"paper"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# About formulas, not about sampling.
ALONE = {"optim": {"schedules", "_checks"}, "theory": {"schedules", "_checks"}}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "mlmcgrad":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("mlmcgrad."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("mlmcgrad.")}
    return {name for name in found if name in RANK}


def test_arrows_point_one_way() -> None:
    seen = 0
    for path in ROOT.rglob("*.py"):
        layer = path.relative_to(ROOT).with_suffix("").parts[0]
        if layer in ("__init__", "__main__"):
            continue
        assert layer in RANK, f"{layer} has no place in LAYERS"
        for other in _imports(path) - {layer}:
            seen += 1
            assert RANK[other] < RANK[layer], f"{path.name} of {layer} imports {other}"
            assert other in ALONE.get(layer, RANK), f"{layer} imports {other}"
    assert seen > 20


@pytest.mark.parametrize("name", WALKS)
def test_walks_are_those_of_the_page(name: str) -> None:
    """docs/architecture.md lists the modules that a call crosses, in their order."""
    page = Path(__file__).parents[1].joinpath("docs", "architecture.md").read_text(encoding="utf-8")
    section = page.partition(f"### {name}\n")[2].partition("\n### ")[0]
    modules = WALKS[name]()
    assert re.findall(r"`([\w.]+)`(?: →|\n|$)", section) == modules
    assert f": {len(modules)} modules." in section
