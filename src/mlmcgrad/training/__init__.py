"""Training an autoencoder in a run folder, so that no work is ever lost.

Names are imported when they are first used, so that `mlmcgrad train --help` can read `Config`
without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlmcgrad.runs.signals import Stopped
    from mlmcgrad.training.config import Config, Settings
    from mlmcgrad.training.loop import Result, train
    from mlmcgrad.training.run import DivergedError

_HOME = {
    "Config": "training.config",
    "DivergedError": "training.run",
    "Result": "training.loop",
    "Settings": "training.config",
    "Stopped": "runs.signals",
    "train": "training.loop",
}

__all__ = ["Config", "DivergedError", "Result", "Settings", "Stopped", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"mlmcgrad.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        remedy = f"training needs the package {error.name}; pip install 'mlmcgrad[cli]'"
        raise ModuleNotFoundError(remedy, name=error.name) from error


def __dir__() -> list[str]:
    return sorted(__all__)
