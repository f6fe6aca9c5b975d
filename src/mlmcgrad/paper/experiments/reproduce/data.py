"""A reproduction, read from its folder.

    config.json            settings, the names of the runs, versions, where and when
    runs/NAME/             a run folder of `mlmcgrad train` for each run
    runs/NAME/error.json   why the run failed, if it did

Methods are named as in `iwae/objective.py`: `iwae`, `br`, `mlmc`; and beyond the paper `mlmc-rb`,
the Rao-Blackwellised multilevel estimator; `mlmc-is`, levels of importance sampling in sum form;
`dreg`, IWAE with the doubly reparameterised encoder gradient; `jsa`, persistent chains of one step
with the wake gradient (joint stochastic approximation).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mlmcgrad.paper.experiments.folder import blamed_on
from mlmcgrad.paper.experiments.reproduce.settings import METHODS, OPTIMIZERS, RUNS, DatasetChoice
from mlmcgrad.paper.runs import folder as records

ERROR = "error.json"
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
        """Return one column of the tests, such as `nll`, `gradient`, `epoch` or `evaluations`."""
        return np.array([row[name] for row in self.tests], dtype=np.float64)

    def at(self, name: str, axis: str, where: float | Sequence[float]) -> Array:
        """Interpolate a column of the tests at points of an axis, linearly in their logarithm."""
        return np.interp(np.log(where), np.log(self.test(axis)), self.test(name))

    def line(self, name: str) -> Array:
        """Return one column of the other lines, such as `effective` or `seconds`."""
        return np.array([row[name] for row in self.lines], dtype=np.float64)

    def tested(self, name: str) -> bool:
        """Return whether there are tests and all of them have this column."""
        return bool(self.tests) and all(name in row for row in self.tests)

    def truncation(self, iteration: float) -> float:
        """Return T_n before rounding; 1 for methods with a single step."""
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
        """Return the complete runs of a method by optimizer and seed, or those of one optimizer."""
        order = list(OPTIMIZERS)
        runs = [run for run in self.runs if run.method == method and run.complete]
        runs = [run for run in runs if optimizer in (None, run.optimizer)]
        return sorted(runs, key=lambda run: (order.index(run.optimizer), run.seed))


def read_reproduction(folder: Path) -> Reproduction:
    """Read a reproduction.

    Raises:
        ValueError: the folder does not hold one, or a file in it is damaged; the message names it.
    """
    path = folder / records.CONFIG
    about = records.read_json(path) if path.exists() else {}
    if about.get("experiment") != "reproduce":
        what = f"names the experiment {about.get('experiment')!r}" if about else "is not there"
        raise ValueError(
            f"{folder} holds no reproduction (its {records.CONFIG} {what}); name a folder that "
            "`mlmcgrad reproduce --out` has written"
        )
    with name_damaged([folder]):
        runs = []
        for name, settings in about["runs"].items():
            if not re.fullmatch(r"[\w-]+", name):  # it would lead out of the folder
                raise ValueError(f"{path} is damaged: {name!r} is not the name of a run")
            runs.append(_read_run(name, folder / RUNS / name, settings))
        if (dataset := about["settings"]["dataset"]) not in get_args(DatasetChoice):
            raise ValueError(f"{path} is damaged: {dataset!r} is not the name of a dataset")
    return Reproduction(folder, about, runs)


def name_damaged(folders: Sequence[Path]) -> AbstractContextManager[None]:
    """Name the files of reproductions and the remedy in errors that their content causes."""
    return blamed_on(
        f"{records.CONFIG}, or {records.METRICS} of a run,",
        folders,
        "restore the file, or move the folder of the run away and train it again with `mlmcgrad "
        "reproduce --resume`",
    )


def _read_run(name: str, folder: Path, settings: dict[str, Any]) -> TrainingRun:
    """Read a run; one that has not begun has no lines."""
    metrics, summary, error = (folder / n for n in (records.METRICS, records.SUMMARY, ERROR))
    rows = records.read_lines(metrics, growing=True) if metrics.exists() else []
    tests = [row for row in rows if "nll" in row]
    complete = summary.exists()
    if complete:
        last = tests[-1]["iteration"] if tests else None
        end = records.read_json(summary).get("iteration")
        if last != end:
            raise ValueError(
                f"{metrics} is damaged: its last test is at iteration {last}, but {summary} says "
                f"{end}"
            )
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
        error=str(records.read_json(error).get("error")) if error.exists() else None,
    )


def method_name(settings: dict[str, Any]) -> str:
    """Return the name of the method that the settings of a training run describe."""
    fitting = [name for name, own in METHODS.items() if own.items() <= settings.items()]
    return max(fitting, key=lambda name: len(METHODS[name]))
