"""Multilevel Monte Carlo gradients for models trained through a Markov chain.

The README has a twenty-line example to get you started; each module opens with its formulas.

Submodules are imported when they are first used: importing torch takes over a second, and
`mlmcgrad --help` does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlmcgrad import (
        diagnostics,
        distributed,
        estimators,
        factors,
        iwae,
        kernels,
        lengths,
        levels,
        measure,
        mixed,
        optim,
        paper,
        problems,
        schedules,
        theory,
    )
    from mlmcgrad.backward import Estimate
    from mlmcgrad.estimators import MLMC, Average, MLMCSum
    from mlmcgrad.finish import Finish
    from mlmcgrad.gradient import MarkovGradient
    from mlmcgrad.store import Store

__version__ = "0.3.0"

_HOME = {
    "MLMC": "estimators",
    "MLMCSum": "estimators",
    "Average": "estimators",
    "Estimate": "backward",
    "Finish": "finish",
    "MarkovGradient": "gradient",
    "Store": "store",
}

__all__ = [
    "MLMC",
    "Average",
    "Estimate",
    "Finish",
    "MLMCSum",
    "MarkovGradient",
    "Store",
    "diagnostics",
    "distributed",
    "estimators",
    "factors",
    "iwae",
    "kernels",
    "lengths",
    "levels",
    "measure",
    "mixed",
    "optim",
    "paper",
    "problems",
    "schedules",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME.get(name, name)}")
    return getattr(module, name) if name in _HOME else module


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
