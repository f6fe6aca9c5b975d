"""The numbers of the report: for `summary.json` as numbers, for the page as text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlmcgrad.experiments.reproduce import curves
from mlmcgrad.experiments.reproduce.claims import Claim
from mlmcgrad.experiments.reproduce.gather import (
    DATASETS,
    LABELS,
    OPTIMIZERS,
    Reproduction,
    TrainingRun,
    interpolate,
)

NONE = "–"
VERDICTS = {"holds": ("✓", "yes"), "does not hold": ("✗", "no"), "undecided": ("?", "open")}
_FINAL = ("nll", "nll_se", "gradient", "gradient_se", "evaluations", "seconds", "iteration")
_WINDOW = 0.9  # diagnostics are means over the last tenth of the iterations that all methods made


@dataclass(frozen=True)
class Diagnostics:
    """How a method's gradients behave at the end of what all methods ran; means over seeds."""

    method: str
    optimizer: str
    truncation: float
    effective: float
    acceptance: float
    evaluations: float  # per picture and iteration
    variance: float | None  # of one gradient estimate: E‖Ĥ‖² − ‖∇V‖²
    relative: float | None  # variance × evaluations, in units of BR-IWAE's


def summary(
    reproductions: Sequence[Reproduction], claims: Sequence[Sequence[Claim]], names: Sequence[str]
) -> dict[str, Any]:
    """What `summary.json` holds."""
    return {
        "claims": [_finite(dataclasses.asdict(claim)) for part in claims for claim in part],
        "final": [row for r in reproductions for row in final(r)],
        "failed": [{"dataset": r.dataset, **row} for r in reproductions for row in failed(r)],
        "diagnostics": [
            {"dataset": r.dataset, **dataclasses.asdict(row)}
            for r in reproductions
            for row in diagnostics(r)
        ],
        "reproductions": [
            {"name": name, **about(r)} for name, r in zip(names, reproductions, strict=True)
        ],
    }


def final(reproduction: Reproduction) -> list[dict[str, Any]]:
    """The last test of every complete run."""
    return [
        {
            "dataset": reproduction.dataset,
            "method": run.method,
            "optimizer": run.optimizer,
            "seed": run.seed,
            **{name: run.tests[-1].get(name) for name in _FINAL},
        }
        for optimizer in reproduction.optimizers
        for method in reproduction.methods
        for run in reproduction.of(method, optimizer)
        if run.tests
    ]


def failed(reproduction: Reproduction) -> list[dict[str, str]]:
    """Runs without a result, and why."""
    return [{"name": run.name, "error": run.error or "not finished"} for run in reproduction.failed]


def about(reproduction: Reproduction) -> dict[str, Any]:
    """Where the numbers come from; folders are left out, they are of one machine only."""
    known = ("command", "commit", "seconds", "started", "finished", "cores", "versions")
    found = {key: reproduction.about[key] for key in known if key in reproduction.about}
    return {**found, "settings": _without_folders(reproduction.about["settings"])}


def diagnostics(reproduction: Reproduction) -> list[Diagnostics]:
    """One row for every optimizer and method, at the same iterations."""
    rows = []
    for optimizer in reproduction.optimizers:
        runs = {
            m: [run for run in reproduction.of(m, optimizer) if run.lines and run.tests]
            for m in reproduction.methods
        }
        last = [run.lines[-1]["iteration"] for some in runs.values() for run in some]
        if not last:
            continue
        found = {m: _diagnose(some, min(last)) for m, some in runs.items() if some}
        base = found.get("br")
        for row in found.values():
            if base and base.variance and row.variance is not None:
                ratio = row.variance * row.evaluations / (base.variance * base.evaluations)
                row = dataclasses.replace(row, relative=ratio)
            rows.append(row)
    return rows


def common_iterations(reproduction: Reproduction) -> list[tuple[str, int]]:
    """For each optimizer the iterations that all its complete runs made."""
    found = [
        (
            optimizer,
            [
                run.lines[-1]["iteration"]
                for method in reproduction.methods
                for run in reproduction.of(method, optimizer)
                if run.lines
            ],
        )
        for optimizer in reproduction.optimizers
    ]
    return [(OPTIMIZERS[optimizer], min(last)) for optimizer, last in found if last]


def _diagnose(runs: list[TrainingRun], end: int) -> Diagnostics:
    per_seed = [_window(run, end) for run in runs]
    mean = {name: float(np.mean([row[name] for row in per_seed])) for name in per_seed[0]}
    variance = mean["squared"] - mean["gradient"]
    return Diagnostics(
        runs[0].method,
        runs[0].optimizer,
        curves.truncation(runs[0], end),
        mean["effective"],
        mean["acceptance"],
        mean["evaluations"],
        variance if math.isfinite(variance) else None,
        None,
    )


def _window(run: TrainingRun, end: int) -> dict[str, float]:
    iteration = run.line("iteration")
    inside = (iteration > _WINDOW * end) & (iteration <= end)
    inside |= iteration == iteration[iteration <= end].max(initial=iteration[0])
    first = int(np.argmax(inside))
    before = run.lines[first - 1] if first else {"iteration": 0, "evaluations": 0}
    after = run.lines[int(np.flatnonzero(inside)[-1])]
    spent = after["evaluations"] - before["evaluations"]
    pictures = (after["iteration"] - before["iteration"]) * run.settings["batch_size"]
    known = all("gradient" in row for row in run.tests)
    gradient = float(interpolate(run, "gradient", "iteration", end)) if known else math.nan
    return {
        "effective": float(run.line("effective")[inside].mean()),
        "acceptance": float(run.line("acceptance")[inside].mean()),
        "squared": float(run.line("theta_squared")[inside].mean()),
        "gradient": gradient,
        "evaluations": spent / pictures,
    }


def claim_groups(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Claims under the sentence of the paper and the number that they share, in their order."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for claim in claims:
        symbol, kind = VERDICTS.get(claim.verdict, ("?", "open"))
        interval = (
            NONE
            if claim.low is None or claim.high is None
            else f"{number(claim.low)} to {number(claim.high)}"
        )
        groups.setdefault((claim.paper, claim.measured), []).append(
            {
                "optimizer": OPTIMIZERS.get(claim.optimizer, claim.optimizer),
                "method": LABELS.get(claim.method, claim.method),
                "value": number(claim.value),
                "interval": interval,
                "verdict": claim.verdict,
                "symbol": symbol,
                "kind": kind,
                "note": claim.note,
                "id": claim.id,
            }
        )
    return [
        {"paper": paper, "measured": measured, "rows": rows}
        for (paper, measured), rows in groups.items()
    ]


def counts(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """How many claims have each verdict."""
    return [
        {
            "verdict": verdict,
            "symbol": symbol,
            "kind": kind,
            "count": sum(claim.verdict == verdict for claim in claims),
        }
        for verdict, (symbol, kind) in VERDICTS.items()
    ]


def final_rows(reproduction: Reproduction) -> list[dict[str, str]]:
    """The last tests, mean ± standard deviation over seeds, as text."""
    found = []
    for optimizer in reproduction.optimizers:
        for method in reproduction.methods:
            runs = [run for run in reproduction.of(method, optimizer) if run.tests]
            if not runs:
                continue
            last = [run.tests[-1] for run in runs]
            iteration = max(row["iteration"] for row in last)
            found.append(
                {
                    "optimizer": OPTIMIZERS[optimizer],
                    "method": LABELS[method],
                    "seeds": str(len(runs)),
                    "iterations": number(iteration),
                    "truncation": number(curves.truncation(runs[0], iteration)),
                    "nll": _spread([row["nll"] for row in last]),
                    "gradient": _spread([row["gradient"] for row in last if "gradient" in row]),
                    "evaluations": number(np.mean([row["evaluations"] for row in last]) / 1e6),
                    "seconds": number(np.mean([row["seconds"] for row in last])),
                }
            )
    return found


def configuration(reproduction: Reproduction) -> list[tuple[str, str]]:
    """Settings of the reproduction, and then what all its training runs share."""
    own = _without_folders(reproduction.about["settings"])
    rows = [(key, _text(value)) for key, value in own.items()]
    every = [run.settings for run in reproduction.runs]
    shared = {
        key: value
        for key, value in (every[0] if every else {}).items()
        if key not in own and all(s.get(key) == value for s in every)
    }
    return rows + [(key, _text(value)) for key, value in _without_folders(shared).items()]


def number(value: Any) -> str:
    """Three or four digits that matter, as people write them."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.3g}".replace("-", "−")
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.2e}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.0f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def dataset(reproduction: Reproduction) -> str:
    """Its dataset as people write it."""
    return DATASETS.get(reproduction.dataset, reproduction.dataset)


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: an interval without an end has None there."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def _spread(values: list[float]) -> str:
    if not values:
        return NONE
    mean = float(np.mean(values))
    if len(values) == 1:
        return _digits(mean, mean / 1000.0)
    error = float(np.std(values, ddof=1))
    return f"{_digits(mean, error)} ± {_digits(error, error)}"


def _digits(value: float, error: float) -> str:
    """As many decimals as two digits of the error need."""
    decimals = 2 if error == 0.0 else min(6, max(0, 1 - math.floor(math.log10(abs(error)))))
    return f"{value:,.{decimals}f}".replace("-", "−")


def _without_folders(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("out", "source", "resume")}


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


__all__ = [
    "Diagnostics",
    "about",
    "claim_groups",
    "common_iterations",
    "configuration",
    "counts",
    "dataset",
    "diagnostics",
    "duration",
    "failed",
    "final",
    "final_rows",
    "number",
    "summary",
]
