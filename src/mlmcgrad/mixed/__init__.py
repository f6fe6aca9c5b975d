"""Mixed-effects models: the maximum of the exact likelihood.

    from mlmcgrad import mixed
    fit = mixed.fit("use ~ age + urban + (1 + urban | district)", data, "bernoulli")
    print(fit)

Names are imported when they are first used, since they need pandas and formulae.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlmcgrad.mixed.compare import Comparison
    from mlmcgrad.mixed.design import build
    from mlmcgrad.mixed.families import Family, family
    from mlmcgrad.mixed.files import load
    from mlmcgrad.mixed.fitting import fit
    from mlmcgrad.mixed.result import Fit

_HOME = {
    "Comparison": "compare",
    "Family": "families",
    "Fit": "result",
    "build": "design",
    "family": "families",
    "fit": "fitting",
    "load": "files",
}

__all__ = ["Comparison", "Family", "Fit", "build", "family", "fit", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"mlmcgrad.mixed.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        remedy = f"mixed models need the package {error.name}; pip install 'mlmcgrad[mixed]'"
        raise ModuleNotFoundError(remedy, name=error.name) from error


def __dir__() -> list[str]:
    return sorted(__all__)
