"""The numbers that matter in `boltzmann`: final likelihoods, and paired differences to MLMC.

Log-likelihoods are totals over the 32 rows of bars and stripes, as in the published benchmark, and
means of a row for digits. Runs with the same seed start at the same machine, so differences between
methods are taken seed by seed. `at equal steps` reads both curves where the one with fewer Gibbs
steps ends; `at equal iterations` at their ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlmcgrad.experiments.boltzmann.pictures import ceiling, pictures
from mlmcgrad.experiments.boltzmann.settings import LABELS, Data
from mlmcgrad.experiments.folder import Findings
from mlmcgrad.experiments.statistics import student_interval

OURS = "mlmc"
ITERATES = ("last", "averaged")


def summarise(parts: dict[str, Any]) -> Findings:
    """One row for each point of a curve; the summary has one entry for each data set."""
    rows = [
        {"data": part["data"], "method": part["method"], "seed": part["seed"], **point}
        for part in parts.values()
        for point in part["curve"]
    ]
    names = list(dict.fromkeys(part["data"] for part in parts.values()))
    return Findings(rows, {"data": {name: _summary(name, parts) for name in names}})


def _summary(name: Data, parts: dict[str, Any]) -> dict[str, Any]:
    data = pictures(name)
    unit = len(data) if name == "bars" else 1
    runs = {
        method: {
            part["seed"]: part
            for part in parts.values()
            if (part["data"], part["method"]) == (name, method)
        }
        for method in LABELS
    }
    return {
        "unit": unit,
        "ceiling": unit * ceiling(data),
        "iterations": next(iter(runs["mlmc"].values()))["curve"][-1]["iteration"],
        "side": round(data.shape[1] ** 0.5),
        "methods": {method: _method(of, unit) for method, of in runs.items()},
        "differences": {
            method: _differences(runs[OURS], of, unit)
            for method, of in runs.items()
            if method != OURS
        },
        "samples": {method: next(iter(of.values()))["samples"] for method, of in runs.items()},
    }


def _method(runs: dict[int, Any], unit: int) -> dict[str, Any]:
    """Final likelihoods with intervals, and what an iteration took."""
    ends = [part["curve"][-1] for part in runs.values()]
    found: dict[str, Any] = {"seeds": len(ends)}
    for name in ("steps", "seconds"):
        found[f"{name}_an_iteration"] = float(np.mean([e[name] / e["iteration"] for e in ends]))
    for iterate in ITERATES:
        values = [unit * end[iterate] for end in ends]
        mean, low, high = student_interval(values)
        found[iterate] = {"mean": mean, "interval": [low, high], "values": values}
    return found


def _differences(ours: dict[int, Any], others: dict[int, Any], unit: int) -> dict[str, Any]:
    """MLMC minus another method, seed by seed."""
    seeds = sorted(set(ours) & set(others))
    found: dict[str, Any] = {}
    for iterate in ITERATES:
        pairs = [(ours[seed]["curve"], others[seed]["curve"]) for seed in seeds]
        ends = [unit * (a[-1][iterate] - b[-1][iterate]) for a, b in pairs]
        found[iterate] = {"iterations": _interval(ends)}
        if all(b[-1]["steps"] for _, b in pairs):
            equal = [unit * _at_equal_steps(a, b, iterate) for a, b in pairs]
            found[iterate]["steps"] = _interval(equal)
    return found


def _at_equal_steps(a: list[dict[str, Any]], b: list[dict[str, Any]], iterate: str) -> float:
    where = min(a[-1]["steps"], b[-1]["steps"])
    values = [
        np.interp(where, [p["steps"] for p in curve], [p[iterate] for p in curve])
        for curve in (a, b)
    ]
    return float(values[0] - values[1])


def _interval(values: list[float]) -> dict[str, Any]:
    mean, low, high = student_interval(values)
    return {"mean": mean, "interval": [low, high]}
