"""Settings of `mlmcgrad boltzmann`, and the numbers that all its runs share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from mlmcgrad.experiments.settings import Preset, Simulation

Data: TypeAlias = Literal["bars", "digits"]

# The published benchmark (Qiu, Zhang, Wang 2020): 4×4 pictures, 16 hidden units, step size 0.1,
# normal starts with standard deviation 0.1, 1000 chains.
HIDDEN, STEP_SIZE, SCALE, CHAINS = 16, 0.1, 0.1, 1000
STEPS = 7  # Gibbs steps a chain and iteration, for the comparison
TRUNCATION = 128  # MLMC with T = 128 makes 7 of them on average
# Gives the sum form 7 steps as well; with 1/2 it would make 4.5.
CONTINUATION = 0.56774
LABELS = {
    "cd-1": "CD-1",
    "cd-7": "CD-7",
    "pcd-1": "PCD-1",
    "pcd-7": "PCD-7",
    "ucd": "UCD",
    "mlmc": "MLMC",
    "mlmc-sum": "MLMCSum",
    "mlmc-persistent": "PCD + MLMC",
    "average": "average-128",
    "exact": "exact",
}
"""The methods, in the order in which they are shown."""
BESIDE = ("mlmc-sum", "mlmc-persistent", "exact")
"""Methods that take long, and that no claim of the published benchmark is about."""
ONCE = "average"  # has one seed: it takes longest
REFERENCES = (ONCE, "exact")
"""Methods that show what more work or the truth would give; they stand outside the comparison."""


@dataclass(frozen=True)
class Effort:
    """How much a preset computes for one data set."""

    iterations: int
    seeds: int
    few: int  # seeds of `BESIDE`
    chains: int = CHAINS


EFFORT: dict[Preset, dict[Data, Effort]] = {
    "smoke": {"bars": Effort(12, 2, 1, 40), "digits": Effort(6, 2, 2, 40)},
    "quick": {"bars": Effort(1_500, 3, 3), "digits": Effort(200, 2, 2)},
    "full": {"bars": Effort(10_000, 10, 5), "digits": Effort(2_000, 5, 5)},
}


@dataclass(frozen=True)
class Boltzmann(Simulation):
    """Boltzmann machines: exact log-likelihood against Gibbs steps, for CD, PCD, UCD and MLMC."""

    files: ClassVar = ("boltzmann.png", "boltzmann.svg", "samples.png", "samples.svg", "table.md")

    out: Path = Path("runs/boltzmann")
    data: tuple[Data, ...] = ("bars", "digits")
    """Bars and stripes 4×4 (32 rows), and the digits of scikit-learn in black and white."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data or len(set(self.data)) < len(self.data):
            raise ValueError(f"data must name each choice once, got {' '.join(self.data)!r}")
