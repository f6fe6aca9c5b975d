"""Names that can be imported: none hides a module, and what an extra brings is asked for."""

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import mlmcgrad

PACKAGES = sorted(
    ["mlmcgrad"]
    + [m.name for m in pkgutil.walk_packages(mlmcgrad.__path__, "mlmcgrad.") if m.ispkg]
)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_function_hides_a_module(name: str) -> None:
    package = importlib.import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    for public in getattr(package, "__all__", []):
        if public in modules:
            assert isinstance(getattr(package, public), ModuleType), f"{name}.{public}"


EXTRAS = """
import sys
class NotInstalled:
    def find_spec(self, name, *_):
        if name in ("rich", "sklearn", "tyro"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NotInstalled())
import mlmcgrad as mg
from mlmcgrad.cli import main
for use in (lambda: mg.paper.training.train, mg.paper.datasets.digits):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
sys.exit(main(["--help"]))
"""


def test_a_missing_extra_is_named_with_the_remedy() -> None:
    done = subprocess.run([sys.executable, "-c", EXTRAS], capture_output=True, text=True)
    assert done.returncode == 2
    said = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert [line.split("; ")[0] for line in said] == [
        "training needs the package rich",
        "digits come with the package scikit-learn",
        "mlmcgrad: the command line needs the package tyro",
    ]
    assert all(line.endswith("pip install 'mlmcgrad[paper]'") for line in said)
