"""A public name that is not a module never hides a submodule of the same name."""

import importlib
import pkgutil
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
