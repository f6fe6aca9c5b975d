"""Dependencies point one way: a module imports only from layers below its own."""

import ast
from pathlib import Path

import mlmcgrad

ROOT = Path(mlmcgrad.__file__).parent
LAYERS = [
    {"hotelling", "ranges", "rounding", "schedules", "seeds", "plan", "measure", "runs", "wrapped"},
    {"levels", "store", "optim", "theory", "datasets"},
    {"kernels", "estimators"},
    {"backward", "problems"},
    {"estimate"},
    {"gradient"},
    {"diagnostics", "distributed", "iwae", "mixed"},
    {"training"},
    {"experiments"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# About formulas, not about sampling; and about folders, not about models.
ALONE = {
    "optim": {"schedules", "ranges"},
    "theory": {"schedules", "ranges", "rounding"},
    "runs": set[str](),
}


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
