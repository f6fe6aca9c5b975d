"""Importance weighted autoencoders: networks, the three objectives, training, evaluation.

Names are imported when they are first used, so that `mlmcgrad train --help` can read `Config`
without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlmcgrad.iwae.config import Config
    from mlmcgrad.iwae.errors import DivergedError, Stopped
    from mlmcgrad.iwae.evaluate import negative_log_likelihood, squared_gradient_norm
    from mlmcgrad.iwae.likelihoods import Bernoulli, DiscretizedLogistic
    from mlmcgrad.iwae.networks import CIFAR10, DIGITS, LatentModel, Sizes
    from mlmcgrad.iwae.objective import Objective, Step
    from mlmcgrad.iwae.training import Result, train

_HOME = {
    "CIFAR10": "networks",
    "DIGITS": "networks",
    "Bernoulli": "likelihoods",
    "Config": "config",
    "DiscretizedLogistic": "likelihoods",
    "DivergedError": "errors",
    "LatentModel": "networks",
    "Objective": "objective",
    "Result": "training",
    "Sizes": "networks",
    "Step": "objective",
    "Stopped": "errors",
    "negative_log_likelihood": "evaluate",
    "squared_gradient_norm": "evaluate",
    "train": "training",
}

__all__ = [
    "CIFAR10",
    "DIGITS",
    "Bernoulli",
    "Config",
    "DiscretizedLogistic",
    "DivergedError",
    "LatentModel",
    "Objective",
    "Result",
    "Sizes",
    "Step",
    "Stopped",
    "negative_log_likelihood",
    "squared_gradient_norm",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
