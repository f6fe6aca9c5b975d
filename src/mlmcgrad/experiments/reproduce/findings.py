"""What a reproduction found, numbers only: computed once from its runs, then shown by others.

`summary.json` is their serialisation, without the curves: these are in `metrics.jsonl` of the runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlmcgrad.experiments.reproduce.claims import Claim, evaluate
from mlmcgrad.experiments.reproduce.curves import Curves, measure
from mlmcgrad.experiments.reproduce.diagnostics import Diagnostics, diagnose
from mlmcgrad.experiments.reproduce.gather import LABELS, OPTIMIZERS, Reproduction, TrainingRun

_DATASETS = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10"}
_ABOUT = ("command", "note", "commit", "seconds", "finished", "cores", "versions")
_PRIVATE = ("out", "source", "resume", "force")  # folders are of one machine only


@dataclass(frozen=True)
class Final:
    """The last test of one run."""

    method: str
    optimizer: str
    seed: int
    truncation: float
    nll: float
    nll_se: float | None
    gradient: float | None
    gradient_se: float | None
    evaluations: int
    seconds: float
    iteration: int


@dataclass(frozen=True)
class Failed:
    """A run without a result, and why."""

    name: str
    error: str


@dataclass(frozen=True)
class Findings:
    """All that is known of one reproduction."""

    name: str  # of its dataset; with its folder where two reproductions have the same dataset
    about: Mapping[str, Any]  # command, commit, time, versions, settings, and those of all runs
    seeds: int
    runs: int
    claims: tuple[Claim, ...]
    diagnostics: tuple[Diagnostics, ...]
    final: tuple[Final, ...]
    failed: tuple[Failed, ...]
    curves: Curves

    def record(self) -> dict[str, Any]:
        """What `summary.json` holds of it."""
        return {
            field.name: _json(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name != "curves"
        }


def find(reproductions: Sequence[Reproduction]) -> list[Findings]:
    """The findings of reproductions that are shown together."""
    names = [_DATASETS.get(each.dataset, each.dataset) for each in reproductions]
    often = Counter(names)
    return [
        _find(each, f"{name} ({each.folder.resolve().name})" if often[name] > 1 else name)
        for name, each in zip(names, reproductions, strict=True)
    ]


def _find(reproduction: Reproduction, name: str) -> Findings:
    runs = reproduction.runs
    return Findings(
        name=name,
        about=_about(reproduction),
        seeds=len({run.seed for run in runs}),
        runs=len(runs),
        claims=evaluate(reproduction),
        diagnostics=diagnose(reproduction),
        final=tuple(
            _final(run)
            for optimizer in OPTIMIZERS
            for method in LABELS
            for run in reproduction.of(method, optimizer)
            if run.tests
        ),
        failed=tuple(
            Failed(run.name, run.error or "not finished") for run in runs if not run.complete
        ),
        curves=measure(reproduction),
    )


def _about(reproduction: Reproduction) -> dict[str, Any]:
    own = _without_folders(reproduction.about["settings"])
    every = [run.settings for run in reproduction.runs]
    shared = {
        key: value
        for key, value in (every[0] if every else {}).items()
        if key not in own and all(settings.get(key) == value for settings in every)
    }
    about = {key: reproduction.about[key] for key in _ABOUT if key in reproduction.about}
    return {**about, "settings": own, "training": _without_folders(shared)}


def _final(run: TrainingRun) -> Final:
    last = run.tests[-1]
    measured: dict[str, Any] = {
        field.name: last.get(field.name) for field in dataclasses.fields(Final)[4:]
    }
    truncation = run.truncation(last["iteration"])
    return Final(run.method, run.optimizer, run.seed, truncation, **measured)


def _without_folders(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in _PRIVATE}


def _json(value: Any) -> Any:
    """As JSON has it: it knows no infinity, so an interval without an end has None there."""
    if isinstance(value, Mapping):
        return {key: _json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _json(vars(value)) if dataclasses.is_dataclass(value) else value
