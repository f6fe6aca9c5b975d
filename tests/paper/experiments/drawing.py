"""What an experiment draws, and runs without figures, which take longer than small computations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from mlmcgrad.paper.experiments.folder import Findings


@contextmanager
def recorded(experiment: ModuleType, *, draw: bool = False) -> Iterator[list[Findings]]:
    """Collect the findings that an experiment draws; the figure is made only if `draw`."""
    original, seen = experiment.draw, []

    def record(folder: Path, findings: Findings) -> Path:
        seen.append(findings)
        name = experiment.__name__.rpartition(".")[2]
        return original(folder, findings) if draw else folder / f"{name}.png"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "draw", record)
        yield seen
