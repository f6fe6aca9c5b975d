"""How noisy and how dear the gradients of each method are, at the same iterations for all."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from mlmcgrad.experiments.reproduce.gather import LABELS, OPTIMIZERS, Reproduction, TrainingRun

_WINDOW = 0.9  # means over the last tenth of the iterations that all methods made


@dataclass(frozen=True)
class Diagnostics:
    """How a method's gradients behave at the end of what all methods ran; means over seeds."""

    method: str
    optimizer: str
    iteration: int  # the last one that all methods made
    truncation: float
    effective: float
    acceptance: float
    evaluations: float  # per image and iteration
    decoded_again: float | None  # states per image and iteration whose gradient was taken
    variance: float | None  # of one gradient estimate: E‖Ĥ‖² − ‖∇V‖²
    relative: float | None  # variance × evaluations, in units of BR-IWAE's


def diagnose(reproduction: Reproduction) -> tuple[Diagnostics, ...]:
    """One row for every optimizer and method, at the same iterations."""
    rows: list[Diagnostics] = []
    for optimizer in OPTIMIZERS:
        runs = {
            method: [run for run in reproduction.of(method, optimizer) if run.lines and run.tests]
            for method in LABELS
        }
        last = [run.lines[-1]["iteration"] for some in runs.values() for run in some]
        by_method = {method: _row(some, min(last)) for method, some in runs.items() if some}
        base = by_method.get("br")
        for row in by_method.values():
            if base and base.variance and row.variance is not None:
                ratio = row.variance * row.evaluations / (base.variance * base.evaluations)
                row = dataclasses.replace(row, relative=ratio)
            rows.append(row)
    return tuple(rows)


def _row(runs: list[TrainingRun], end: int) -> Diagnostics:
    per_seed = [_window(run, end) for run in runs]
    mean = {name: float(np.mean([row[name] for row in per_seed])) for name in per_seed[0]}
    variance = mean["squared"] - mean["gradient"]
    again = mean["decoded_again"]
    return Diagnostics(
        method=runs[0].method,
        optimizer=runs[0].optimizer,
        iteration=end,
        truncation=runs[0].truncation(end),
        effective=mean["effective"],
        acceptance=mean["acceptance"],
        evaluations=mean["evaluations"],
        decoded_again=again if math.isfinite(again) else None,
        variance=variance if math.isfinite(variance) else None,
        relative=None,
    )


def _window(run: TrainingRun, end: int) -> dict[str, float]:
    iteration = run.line("iteration")
    inside = (iteration > _WINDOW * end) & (iteration <= end)
    inside |= iteration == iteration[iteration <= end].max(initial=iteration[0])
    first = int(np.argmax(inside))
    before = run.lines[first - 1] if first else {}
    after = run.lines[int(np.flatnonzero(inside)[-1])]
    images = (after["iteration"] - before.get("iteration", 0)) * run.settings["batch_size"]

    def spent(name: str) -> float:
        return float(after.get(name, math.nan) - before.get(name, 0)) / images

    known = run.tested("gradient")
    return {
        "effective": float(run.line("effective")[inside].mean()),
        "acceptance": float(run.line("acceptance")[inside].mean()),
        "squared": float(run.line("theta_squared")[inside].mean()),
        "gradient": float(run.at("gradient", "iteration", end)) if known else math.nan,
        "evaluations": spent("evaluations"),
        "decoded_again": spent("loss_evaluations"),
    }
