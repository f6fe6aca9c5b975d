"""What reproduces the paper: datasets, training, run folders, experiments, report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlmcgrad.paper import datasets, training

__all__ = ["datasets", "training"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")  # late: NumPy is half of the time of --help
