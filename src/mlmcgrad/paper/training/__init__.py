"""Training an autoencoder in a run folder, that can be killed and resumed.

`train` is imported when it is first used, so that `mlmcgrad train --help` can read `Config` without
waiting for torch.
"""

from typing import TYPE_CHECKING, Any

from mlmcgrad.paper.runs.process import Stopped
from mlmcgrad.paper.training.config import (
    Config,
    Evaluation,
    Execution,
    Gradient,
    Model,
    Optimizer,
    Settings,
)

if TYPE_CHECKING:
    from mlmcgrad.paper.training.loop import DivergedError, Result, train

__all__ = ["Config", "DivergedError", "Evaluation", "Execution", "Gradient", "Model"]
__all__ += ["Optimizer", "Result", "Settings", "Stopped", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from mlmcgrad.paper.training import loop
    except ModuleNotFoundError as error:
        remedy = f"training needs the package {error.name}; pip install 'mlmcgrad[paper]'"
        raise ModuleNotFoundError(remedy, name=error.name) from error
    return getattr(loop, name)
