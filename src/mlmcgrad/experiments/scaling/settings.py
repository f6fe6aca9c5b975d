"""Settings of `mlmcgrad scaling`.

Nothing here imports torch, so that `mlmcgrad --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlmcgrad.experiments.settings import Experiment


@dataclass(frozen=True)
class Scaling(Experiment):
    """Proposition 1: bias, second and third moment and cost against T, MLMC beside the average."""


__all__ = ["Scaling"]
