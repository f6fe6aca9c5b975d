"""Training an autoencoder in a run folder, so that nothing is ever lost.

Names are imported when they are first used, so that `mlmcgrad train --help` can read `Config`
without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlmcgrad.training.config import Config
    from mlmcgrad.training.errors import DivergedError, Stopped
    from mlmcgrad.training.loop import Result, train

_HOME = {
    "Config": "config",
    "DivergedError": "errors",
    "Result": "loop",
    "Stopped": "errors",
    "train": "loop",
}

__all__ = ["Config", "DivergedError", "Result", "Stopped", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
