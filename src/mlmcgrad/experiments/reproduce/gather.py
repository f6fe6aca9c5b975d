"""A reproduction, read from its folder: the runs that findings are made of.

    config.json      settings, the names of the runs, versions, where and when
    runs/NAME/       one run folder of `mlmcgrad train` each, see `training/`
    runs/NAME/error.json   why the run failed, if it did

The names of the methods: `iwae`, `br`, `mlmc` as in `iwae/objective.py`; `mlmc-rb`, the
Rao-Blackwellised one; and three that are not in the paper: `mlmc-is`, levels of importance sampling
in sum form; `dreg`, IWAE with the doubly reparameterised encoder gradient; `jsa`, persistent chains
of one step with the wake gradient (joint stochastic approximation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmcgrad.experiments.reproduce.checks import (
    check_about,
    check_complete,
    check_rows,
    train_again,
)
from mlmcgrad.runs import folder as records

RUNS, ERROR = "runs", "error.json"
# In the order in which methods and optimizers are always shown.
LABELS = {
    "iwae": "IWAE",
    "dreg": "IWAE-DReG",
    "jsa": "JSA",
    "br": "BR-IWAE",
    "mlmc": "MLMC-IWAE",
    "mlmc-rb": "RB-MLMC-IWAE",
    "mlmc-is": "IS-MLMC-IWAE",
}
OPTIMIZERS = {"amsgrad": "AMSGrad", "adagrad": "Adagrad"}

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

    def at(self, name: str, axis: str, where: float | Sequence[float]) -> Array:
        """A column of the tests at places of an axis, between tests linear in its logarithm."""
        return np.interp(np.log(where), np.log(self.test(axis)), self.test(name))

    def line(self, name: str) -> Array:
        """One column of the other lines, such as `effective` or `seconds`."""
        return np.array([row[name] for row in self.lines], dtype=np.float64)

    def tested(self, name: str) -> bool:
        """Whether there are tests and all of them have this column."""
        return bool(self.tests) and all(name in row for row in self.tests)

    def truncation(self, iteration: float) -> float:
        """T_n, which BR and MLMC round down to what they can use; 1 where there is one step."""
        if self.method in ("iwae", "dreg", "jsa"):
            return 1.0
        scale, exponent = self.settings["truncation_scale"], self.settings["truncation_exponent"]
        return float(scale * iteration**exponent)


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

    def of(self, method: str, optimizer: str | None = None) -> list[TrainingRun]:
        """The complete runs of a method, by optimizer and seed; of one optimizer if it is named."""
        order = list(OPTIMIZERS)
        runs = [run for run in self.runs if run.method == method and run.complete]
        runs = [run for run in runs if optimizer in (None, run.optimizer)]
        return sorted(runs, key=lambda run: (order.index(run.optimizer), run.seed))


def gather(folder: Path) -> Reproduction:
    """Read a reproduction.

    Raises:
        ValueError: the folder does not hold one, or a file in it is damaged; the message names it.
    """
    path = folder / records.CONFIG
    if not path.exists():
        raise ValueError(
            f"{folder} holds no reproduction (there is no {records.CONFIG} in it); name a folder "
            "that `mlmcgrad reproduce --out` has written"
        )
    about = records.read_json(path)
    if about.get("experiment") != "reproduce":
        raise ValueError(
            f"{folder} holds the experiment {about.get('experiment')!r}, not a reproduction; name "
            "a folder that `mlmcgrad reproduce --out` has written"
        )
    check_about(path, about)
    runs = [_read(name, folder / RUNS / name, about["runs"][name]) for name in about["runs"]]
    return Reproduction(folder, about, runs)


def _read(name: str, folder: Path, settings: dict[str, Any]) -> TrainingRun:
    """A run that has not begun has no lines; the settings say what it would have been."""
    rows = _rows(folder / records.METRICS)
    tests = [row for row in rows if "nll" in row]
    complete = (folder / records.SUMMARY).exists()
    if complete:
        check_complete(folder / records.METRICS, tests, folder / records.SUMMARY)
    return TrainingRun(
        name=name,
        folder=folder,
        method=method_name(settings),
        optimizer=settings["optimizer"],
        seed=settings["seed"],
        settings=settings,
        tests=tests,
        lines=[row for row in rows if "bound" in row],
        complete=complete,
        error=_reason(folder / ERROR),
    )


def method_name(settings: dict[str, Any]) -> str:
    """The name of the method that the settings of a training run make."""
    method = str(settings["method"])
    if method == "mlmc" and settings.get("kernel") == "importance":
        return "mlmc-is"
    if method == "mlmc" and settings["rao_blackwell"]:
        return "mlmc-rb"
    if method == "iwae" and settings.get("persistent"):
        return "jsa"
    return "dreg" if method == "iwae" and settings.get("encoder") == "dreg" else method


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        rows = records.read_lines(path, growing=True)
    except ValueError as error:
        raise ValueError(f"{error}; {train_again(path)}") from error
    check_rows(path, rows)
    return rows


def _reason(path: Path) -> str | None:
    """Why a run failed; None if it did not."""
    return str(records.read_json(path).get("error")) if path.exists() else None
