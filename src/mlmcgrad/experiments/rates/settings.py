"""Settings of `mlmcgrad rates`.

Nothing here imports torch, so that `mlmcgrad --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlmcgrad.experiments.settings import Experiment


@dataclass(frozen=True)
class Rates(Experiment):
    """Theorems 1 to 3: E‖∇V(θ_R)‖² against N, with the predicted slope and the evaluated bound."""


__all__ = ["Rates"]
