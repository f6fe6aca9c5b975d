"""A reproduction, read back from its folder: everything that claims, figures and report need.

    config.json      settings, the names of the runs, versions, where and when
    runs/NAME/       one run folder of `mlmcgrad train` each, see `iwae/training.py`
    runs/NAME/error.json   why the run failed, if it did

The names of the methods: `iwae`, `br`, `mlmc` as in `iwae/objective.py`, and `mlmc-rb`, the
Rao-Blackwellised one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmcgrad.runs import folder as records

RUNS, ERROR = "runs", "error.json"
LABELS = {"iwae": "IWAE", "br": "BR-IWAE", "mlmc": "MLMC-IWAE", "mlmc-rb": "RB-MLMC-IWAE"}
OPTIMIZERS = {"amsgrad": "AMSGrad", "adagrad": "Adagrad"}
DATASETS = {"digits": "digits", "cifar10": "CIFAR-10"}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TrainingRun:
    """One method, optimizer and seed."""

    name: str
    folder: Path
    method: str
    optimizer: str
    seed: int
    settings: dict[str, Any]
    tests: list[dict[str, Any]]  # lines of the metrics with a test, in order of iterations
    lines: list[dict[str, Any]]  # lines that sum up iterations
    complete: bool
    error: str | None

    def test(self, name: str) -> Array:
        """One column of the tests, such as `nll`, `gradient`, `epoch`, `evaluations`, `seconds`."""
        return np.array([row[name] for row in self.tests], dtype=np.float64)

    def line(self, name: str) -> Array:
        """One column of the other lines, such as `effective` or `seconds`."""
        return np.array([row[name] for row in self.lines], dtype=np.float64)

    def picture(self, kind: str) -> Path | None:
        """The last picture of `samples` or `reconstructions`."""
        return max(self.folder.glob(f"{kind}-*.png"), default=None)


@dataclass(frozen=True)
class Reproduction:
    """All runs of one reproduction."""

    folder: Path
    about: dict[str, Any]  # config.json
    runs: list[TrainingRun]

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return str(self.about["settings"]["dataset"])

    @property
    def optimizers(self) -> list[str]:
        """Those of which there are runs."""
        return _known(OPTIMIZERS, (run.optimizer for run in self.runs))

    @property
    def methods(self) -> list[str]:
        """Those of which there are runs, in the order in which they are always shown."""
        return _known(LABELS, (run.method for run in self.runs))

    @property
    def failed(self) -> list[TrainingRun]:
        """Runs that ended with an error or did not end."""
        return [run for run in self.runs if not run.complete]

    def of(self, method: str, optimizer: str) -> list[TrainingRun]:
        """The complete runs of a method with an optimizer, by seed."""
        wanted = (method, optimizer)
        found = [run for run in self.runs if (run.method, run.optimizer) == wanted]
        return sorted((run for run in found if run.complete), key=lambda run: run.seed)


def gather(folder: Path) -> Reproduction:
    """Read a reproduction.

    Raises:
        ValueError: the folder does not hold one, or a file in it is damaged.
    """
    path = folder / records.CONFIG
    if not path.exists():
        raise ValueError(
            f"{folder} holds no reproduction (there is no {records.CONFIG} in it); name a folder "
            "that `mlmcgrad reproduce --out` has written"
        )
    about = _json(path)
    if about.get("experiment") != "reproduce":
        raise ValueError(
            f"{folder} holds the experiment {about.get('experiment')!r}, not a reproduction; name "
            "a folder that `mlmcgrad reproduce --out` has written"
        )
    runs = [_read(name, folder / RUNS / name, about["runs"][name]) for name in about["runs"]]
    return Reproduction(folder, about, runs)


def _read(name: str, folder: Path, settings: dict[str, Any]) -> TrainingRun:
    """A run that has not begun has no lines; the settings say what it would have been."""
    rows = _rows(folder / records.METRICS)
    error = folder / ERROR
    return TrainingRun(
        name=name,
        folder=folder,
        method=method_name(settings),
        optimizer=settings["optimizer"],
        seed=settings["seed"],
        settings=settings,
        tests=[row for row in rows if "nll" in row],
        lines=[row for row in rows if "bound" in row],
        complete=(folder / records.SUMMARY).exists(),
        error=_json(error)["error"] if error.exists() else None,
    )


def method_name(settings: dict[str, Any]) -> str:
    """The name of the method that the settings of a training run make."""
    rao_blackwell = settings["method"] == "mlmc" and settings["rao_blackwell"]
    return "mlmc-rb" if rao_blackwell else str(settings["method"])


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    whole = path.read_bytes()
    # A run that is going on, or was killed, may have half a line at its end.
    whole = whole[: whole.rfind(b"\n") + 1]
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); run that part again") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = records.read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return record


def _known(order: Iterable[str], present: Iterable[str]) -> list[str]:
    there = set(present)
    return [name for name in order if name in there]


def interpolate(run: TrainingRun, name: str, axis: str, where: float | Sequence[float]) -> Array:
    """A column of the tests at given places of an axis, between tests linear in its logarithm."""
    return np.interp(np.log(where), np.log(run.test(axis)), run.test(name))


__all__ = [
    "DATASETS",
    "ERROR",
    "LABELS",
    "OPTIMIZERS",
    "RUNS",
    "Array",
    "Reproduction",
    "TrainingRun",
    "gather",
    "interpolate",
    "method_name",
]
