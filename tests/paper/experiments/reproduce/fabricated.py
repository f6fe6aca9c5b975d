"""A reproduction that never ran: folders with plausible numbers, made in a moment.

`write(folder)` makes it; the report of a larger one can be looked at with

    python -c "from pathlib import Path; \\
        from tests.paper.experiments.reproduce import fabricated as f; \\
        f.example(Path('runs/fabricated'))"
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mlmcgrad.paper.experiments.reproduce import report
from mlmcgrad.paper.experiments.reproduce.claims import FAILS, HOLDS, UNDECIDED, Claim
from mlmcgrad.paper.experiments.reproduce.data import TrainingRun, read_reproduction
from mlmcgrad.paper.experiments.reproduce.findings import (
    Curves,
    Diagnostics,
    FinalTest,
    ReproductionFindings,
    find,
)

Formula = Callable[[float], float]
METHODS = ("iwae", "dreg", "jsa", "br", "mlmc", "mlmc-rb", "mlmc-is")
NO_CURVES = Curves({}, {}, {}, None)
BATCH, CANDIDATES, PER_EPOCH = 50, 5, 30
# Test NLL that a method ends at, and how much noisier than BR its gradient is.
_END = {"iwae": 19.2, "br": 18.0, "mlmc": 18.15, "mlmc-rb": 18.1}
_END |= {"dreg": 18.9, "jsa": 18.6, "mlmc-is": 18.3}
_NOISE = {"iwae": 1.4, "br": 1.0, "mlmc": 4.0, "mlmc-rb": 2.5}
_NOISE |= {"dreg": 1.4, "jsa": 1.2, "mlmc-is": 1.5}
# The settings that make a method, where its name is not enough.
_SETTINGS: dict[str, dict[str, Any]] = {
    "dreg": {"method": "iwae", "encoder": "dreg"},
    "jsa": {"method": "iwae", "encoder": "wake", "persistent": True},
    "mlmc-rb": {"method": "mlmc", "rao_blackwell": True},
    "mlmc-is": {"method": "mlmc", "kernel": "importance", "estimator": "sum"},
}


def write(
    folder: Path,
    dataset: str = "digits",
    optimizers: tuple[str, ...] = ("amsgrad",),
    methods: tuple[str, ...] = METHODS,
    seeds: int = 2,
    iterations: int = 100,
    stretch: float = 2.0,
    pictures: bool = True,
) -> Path:
    """Write a reproduction whose runs are all complete."""
    runs = {}
    for optimizer in optimizers:
        for method in methods:
            for seed in range(seeds):
                name = f"{optimizer}-{method}-{seed}"
                last = iterations if method == "br" else round(iterations * stretch)
                runs[name] = _settings(dataset, method, optimizer, seed, last)
                _run(folder / "runs" / name, method, runs[name], pictures)
    settings = {
        "preset": "quick",
        "dataset": dataset,
        "optimizer": list(optimizers),
        "methods": list(methods),
        "seeds": seeds,
        "jobs": 2,
        "iterations": iterations,
        "stretch": stretch,
        "out": str(folder),
    }
    about = {
        "experiment": "reproduce",
        "settings": settings,
        "runs": runs,
        "versions": {"mlmcgrad": "0.1.0", "python": "3.11.2", "torch": "2.6.0", "numpy": "2.0.0"},
        "command": f"mlmcgrad reproduce --dataset {dataset}",
        "commit": "0123abc",
        "cores": 2,
        "seconds": 312.0,
        "finished": "2024-05-06T07:08:09+00:00",
    }
    (folder / "config.json").write_text(json.dumps(about))
    return folder


def fail(folder: Path, name: str, error: str) -> None:
    """Turn a run of a reproduction into one that failed half way."""
    run = folder / "runs" / name
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[: len(lines) // 2]))
    (run / "error.json").write_text(json.dumps({"error": error}))


def claims() -> tuple[Claim, ...]:
    """Claims with all verdicts, with and without a number."""
    return tuple(
        claim
        for optimizer in ("amsgrad", "adagrad")
        for method in ("mlmc", "mlmc-rb")
        for claim in (
            Claim("nll", method, "br", "iteration", optimizer, 3, 0.21, 0.07, 0.35, HOLDS),
            Claim("nll", method, "br", "evaluations", optimizer, 3, 0.12, 0.03, 0.21, FAILS),
            Claim(
                *("budget", method, "br", "evaluations", optimizer),
                *(3, None, None, None, UNDECIDED),
                unreached=1,
                spent=0.5,
            ),
        )
    )


def findings(folder: Path, claims: tuple[Claim, ...] = ()) -> ReproductionFindings:
    """What one reproduction found, with other claims."""
    (found,) = find([read_reproduction(folder)])
    return dataclasses.replace(found, claims=claims)


def read_back(record: dict[str, Any]) -> ReproductionFindings:
    """ReproductionFindings from their record in `summary.json`."""
    kinds: dict[str, Any] = {"claims": _claim, "diagnostics": Diagnostics, "final": FinalTest}
    tables: dict[str, Any] = {
        name: tuple(kind(**row) for row in record[name]) for name, kind in kinds.items()
    }
    tables["failed"] = tuple(map(tuple, record["failed"]))
    return ReproductionFindings(**{**record, **tables}, curves=NO_CURVES)


def _claim(**row: Any) -> Claim:
    """JSON has lists for tuples."""
    fields: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return Claim(**fields)


def example(folder: Path) -> Path:
    """Two reproductions as large as real ones, with a run that failed, and their report."""
    both = ("amsgrad", "adagrad")
    write(folder / "digits", optimizers=both, seeds=3, iterations=3000, stretch=3.0)
    write(folder / "cifar10", "cifar10", both, seeds=3, iterations=1200)
    fail(folder / "cifar10", "adagrad-mlmc-2", "FloatingPointError: the bound is <nan>")
    parts = [read_reproduction(folder / name) for name in ("digits", "cifar10")]
    report.write(parts[:1], folder / "digits")
    report.write(parts, folder / "both")
    return folder / "both" / report.REPORT


def formula_run(
    nll: Formula,
    gradient: Formula = lambda n: 1.0,
    cost: float = 1.0,
    last: int = 2048,
    seed: int = 1,
    method: str = "mlmc",
    optimizer: str = "amsgrad",
) -> TrainingRun:
    """Return a run with NLL and ‖∇V‖² as functions of n, and a constant cost of an iteration."""
    tests = [
        {
            "iteration": n,
            "evaluations": cost * n,
            "seconds": 0.1 * cost * n,
            "epoch": n / 10,
            "nll": nll(n),
            "gradient": gradient(n),
            "gradient_se": 0.1,
        }
        for n in (2**i for i in range(12))
        if n <= last
    ]
    settings = {"truncation_scale": 2.0, "truncation_exponent": 0.5}
    return TrainingRun("name", Path(), method, optimizer, seed, settings, tests, [], True, None)


def _settings(
    dataset: str, method: str, optimizer: str, seed: int, iterations: int
) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "method": method,
        "optimizer": optimizer,
        "rao_blackwell": False,
        **_SETTINGS.get(method, {}),
        "seed": seed,
        "iterations": iterations,
        "batch_size": BATCH,
        "candidates": CANDIDATES,
        "base": 1,
        "truncation_scale": 1.0,
        "truncation_exponent": 0.5,
        "lr": 0.01,
        "test_images": 297,
    }


def _run(folder: Path, method: str, settings: dict[str, Any], pictures: bool) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng([settings["seed"], *map(ord, method + settings["optimizer"])])
    last, rows = settings["iterations"], []
    tests = {last, *(round(10 * 2 ** (i / 2)) for i in range(40))}
    spent, seconds, shift = 0, 0.0, 0.1 * rng.standard_normal()
    for n in range(10, last + 1, 10):
        drawn = rng.geometric(0.5, 10 * BATCH)
        steps = _steps(method, drawn, n)
        spent += int(steps.sum()) * (CANDIDATES - 1) + 10 * BATCH
        seconds += 1e-5 * float(steps.sum()) + 0.03 * (1.0 + 0.1 * rng.random())
        where = {
            "iteration": n,
            "epoch": round(n / PER_EPOCH, 6),
            "evaluations": spent,
            "loss_evaluations": 2 * n * BATCH,
            "seconds": round(seconds, 3),
        }
        value, counts = np.unique(drawn if "mlmc" in method else 0 * drawn, return_counts=True)
        rows.append(
            {
                **where,
                "bound": -30.0,
                "theta_squared": 0.4 + 2.0 * _NOISE[method] * rng.random(),
                "effective": 2.1,
                "largest": 0.6,
                "acceptance": 0.5,
                "levels": {str(k): int(c) for k, c in zip(value, counts, strict=True)},
            }
        )
        # A test stands at the first line from its iteration on: near enough for a fabrication.
        if any(n - 10 < t <= n for t in tests):
            nll = _END[method] + 12.0 * n**-0.35 + shift
            gradient = 3.0 * n**-0.6 * (1.0 + 0.3 * rng.standard_normal())
            gradient += 0.01 * rng.standard_normal()
            rows.append(
                {**where, "nll": nll, "nll_se": 0.1, "gradient": gradient, "gradient_se": 0.02}
            )
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines)
    (folder / "config.json").write_text(json.dumps({"settings": settings}))
    (folder / "summary.json").write_text(json.dumps(rows[-1]))
    if pictures:
        for kind, n in (("samples", 10), ("samples", last), ("reconstructions", last)):
            shape = (274, 274, 3) if settings["dataset"] == "cifar10" else (274, 274)
            coarse = rng.integers(0, 256, (34, 34, *shape[2:]), dtype=np.uint8)
            pixels = coarse.repeat(9, 0).repeat(9, 1)[:274, :274]
            Image.fromarray(pixels).save(folder / f"{kind}-{n:06d}.png")


def _steps(method: str, drawn: Any, n: int) -> Any:
    longest = math.floor(math.sqrt(n))
    if method == "iwae":
        return np.ones_like(drawn)
    if method == "br":
        return np.full_like(drawn, longest)
    return np.where(2**drawn <= longest, 2**drawn, 1)
