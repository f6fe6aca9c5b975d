"""What `make core` runs: the installed wheel with torch and NumPy only.

Its modules are imported, the README's example is run, and some tests. Test tools aside, nothing
else may be installed: an import of an extra fails here.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "mlmcgrad"
EXTRAS = (
    "arviz_base",
    "filelock",
    "formulae",
    "jinja2",
    "matplotlib",
    "pandas",
    "PIL",
    "rich",
    "scipy",
    "sklearn",
    "tyro",
    "xarray",
)
FOLDERS = ("kernels", "optim", "theory", "problems", "diagnostics", "distributed", "iwae")
# A few of each folder, seconds in all: the numbers do not depend on what else is installed.
TESTS = (
    "test_gradient_errors.py",
    "test_lengths.py",
    "test_levels.py",
    "test_estimators_average.py",
    "test_estimators_mlmc.py",
    "test_estimators_mlmc_sum.py",
    "test_estimators_stages.py",
    "kernels/test_base_steps.py",
    "optim/test_sgd.py",
    "optim/test_adagrad.py",
    "theory/test_recommendation_cost.py",
    "theory/test_recommendation.py",
    "iwae/test_objective_states.py",
    "diagnostics/test_export.py",
    "diagnostics/test_pilot_simulator.py",
    "distributed/test_shards.py",
)


def modules() -> list[str]:
    """All modules of the core."""
    paths = [*PACKAGE.glob("*.py"), *(p for f in FOLDERS for p in (PACKAGE / f).rglob("*.py"))]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
    return sorted(name.removesuffix(".__init__") for name in names if "__main__" not in name)


def main() -> int:
    """Import every module of the core, run the README's example, then tests of the core."""
    # torch itself needs filelock and jinja2.
    present = [name for name in EXTRAS if find_spec(name) and name not in ("filelock", "jinja2")]
    if present:
        sys.stderr.write(f"not a bare environment: {', '.join(present)} can be imported\n")
        return 1
    for name in modules():
        path = import_module(name).__file__ or ""
        if PACKAGE.parent in Path(path).parents:
            sys.stderr.write(f"{name} is that of the source tree, not that of the wheel\n")
            return 1
    sys.stdout.write(f"{len(modules())} modules imported\n")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    exec(compile(readme.split("```python\n")[1].split("```")[0], "README.md", "exec"), {})
    sys.path.insert(0, str(ROOT))
    return pytest.main(["-p", "no:cacheprovider", *(str(ROOT / "tests" / test) for test in TESTS)])


if __name__ == "__main__":
    sys.exit(main())
