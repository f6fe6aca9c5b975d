"""Settings of `mlmcgrad scaling`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mlmcgrad.experiments.settings import Simulation


@dataclass(frozen=True)
class Scaling(Simulation):
    """Proposition 1: bias, second and third moment and cost against T, MLMC and the average."""

    files: ClassVar = ("scaling.png", "scaling.svg")

    out: Path = Path("runs/scaling")
