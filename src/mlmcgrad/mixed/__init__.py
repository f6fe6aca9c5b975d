"""Fit mixed-effects models: the maximum of the exact likelihood.

    from mlmcgrad import mixed
    fit = mixed.fit("use ~ age + urban + (1 + urban | district)", data, "bernoulli")
    print(fit)

Names are imported on first use, since they need pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlmcgrad.mixed._fit import fit
    from mlmcgrad.mixed.design import build
    from mlmcgrad.mixed.families import Family, family
    from mlmcgrad.mixed.inference import LikelihoodRatioTest, anova
    from mlmcgrad.mixed.result import ConvergenceWarning, Fit, load

_HOME = {
    "ConvergenceWarning": "result",
    "Family": "families",
    "Fit": "result",
    "LikelihoodRatioTest": "inference",
    "anova": "inference",
    "build": "design",
    "family": "families",
    "fit": "_fit",
    "load": "result",
}

__all__ = [
    "ConvergenceWarning",
    "Family",
    "Fit",
    "LikelihoodRatioTest",
    "anova",
    "build",
    "family",
    "fit",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"mlmcgrad.mixed.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        remedy = f"mixed models need the package {error.name}; pip install 'mlmcgrad[mixed]'"
        raise ModuleNotFoundError(remedy, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
