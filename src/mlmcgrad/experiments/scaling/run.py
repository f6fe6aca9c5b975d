"""Proposition 1 in numbers: bias, second and third moment and cost of Ĥ against T.

Four kernels with known answers, MLMC beside the plain average of T steps. What theory says of one
chain's estimate, once T exceeds the mixing time: the bias falls as 1/T, E‖Ĥ‖² grows linearly in
log T, E‖Ĥ‖³ at most as √T, and the cost is κ + 2^{−κ} transitions. Lines are fitted from a
multiple of the integrated autocorrelation time on, which is measured first.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mlmcgrad import kernels, problems
from mlmcgrad.diagnostics import accuracy, diagnose, level_test
from mlmcgrad.diagnostics.slopes import Fit
from mlmcgrad.estimators import MLMC, Average
from mlmcgrad.experiments.scaling.figures import draw
from mlmcgrad.experiments.scaling.settings import Scaling
from mlmcgrad.experiments.settings import Preset
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.runs import folder as records
from mlmcgrad.runs import pool as parallel

KERNELS = ("finite", "rwmh", "mala", "isir")
# Autocorrelation times after which a line is fitted: the third moment, dominated by the longest
# chains, takes longest to reach its power of T.
SINCE_BIAS, SINCE_SECOND, SINCE_THIRD = 4.0, 8.0, 64.0


@dataclass(frozen=True)
class Effort:
    """How much a preset computes for one kernel."""

    replicates: int  # chains of length 1; longer ones get fewer
    least: int  # chains of the largest length
    highest: int  # T goes to 2^highest


EFFORT: dict[Preset, dict[str, Effort]] = {
    "smoke": {
        "finite": Effort(40_000, 200, 6),
        "rwmh": Effort(40_000, 200, 6),
        "mala": Effort(40_000, 200, 6),
        "isir": Effort(8_000, 100, 5),
    },
    "quick": {
        "finite": Effort(8_000_000, 2_000, 12),
        "rwmh": Effort(8_000_000, 2_000, 12),
        "mala": Effort(8_000_000, 2_000, 12),
        "isir": Effort(400_000, 500, 10),
    },
    "full": {
        "finite": Effort(40_000_000, 10_000, 14),
        "rwmh": Effort(80_000_000, 10_000, 14),
        "mala": Effort(80_000_000, 10_000, 14),
        "isir": Effort(4_000_000, 2_000, 12),
    },
}


def run(config: Scaling, console: Console | None = None) -> dict[str, Any]:
    """Measure, write the run folder, draw the figure and print the table."""
    console = console or Console()
    records.write_config(config.folder, config)
    arguments = {
        f"{name}-{estimator}": {
            "name": name,
            "estimator": estimator,
            "preset": config.preset,
            "seed": config.seed,
        }
        for name in KERNELS
        for estimator in ("mlmc", "average")
    }
    parts = parallel.run_parts(measure, arguments, config.folder, config.jobs, console)
    rows = [row for part in parts.values() for row in part["rows"]]
    records.write_lines(config.folder / records.METRICS, rows)
    summary = summarise(parts)
    records.write_json(config.folder / records.SUMMARY, summary)
    draw(config.folder)
    parallel.forget(config.folder)
    _print(summary, config, console)
    return summary


def measure(
    report: parallel.Report, name: str, estimator: str, preset: Preset, seed: int
) -> dict[str, Any]:
    """One kernel with one estimator: the ladder, its lines, the levels, the health of the chain."""
    effort = EFFORT[preset][name]
    generator = torch.Generator().manual_seed(1000 * seed + KERNELS.index(name))
    problem, kernel, loss, x0, context = setting(name)
    gradient = MarkovGradient(
        kernel,
        loss,
        MLMC(2.0) if estimator == "mlmc" else Average(1),
        parameters=problem.parameters,
    )
    many = torch.zeros(512, dtype=torch.int64)  # the same start for all chains
    start = None if x0 is None else x0[many]
    health = diagnose(gradient, start, *(c[many] for c in context), length=400, generator=generator)
    time = health.autocorrelation_time
    found = accuracy(
        gradient,
        problem,
        x0,
        *context,
        ladder=[2**k for k in range(1, effort.highest + 1)],
        generator=generator,
        replicates=effort.replicates,
        least=effort.least,
        report=lambda share: report(0.9 * share),
    )
    # The short chains of a smoke run leave at least three points.
    longest = 2.0 ** (effort.highest - 2)
    fits: dict[str, Fit] = {
        "bias": found.bias_slope(min(SINCE_BIAS * time, longest)),
        "second_moment": found.second_moment(min(SINCE_SECOND * time, longest)),
        "third_moment": found.third_moment_slope(min(SINCE_THIRD * time, longest)),
        "cost": found.cost_slope(),
    }
    result: dict[str, Any] = {
        "kernel": name,
        "estimator": estimator,
        "rows": [
            {"kernel": name, "estimator": estimator, **dataclasses.asdict(r)} for r in found.rows
        ],
        "fits": {key: dataclasses.asdict(fit) for key, fit in fits.items()},
        "autocorrelation_time": time,
        "acceptance": health.acceptance,
    }
    if estimator == "mlmc":
        levels = level_test(
            gradient,
            x0,
            *context,
            highest=min(effort.highest, 8),
            generator=generator,
            replicates=effort.replicates // 10,
            least=effort.least,
        )
        result["levels"] = [dataclasses.asdict(row) for row in levels.rows]
    report(1.0)
    return result


def setting(
    name: str,
) -> tuple[problems.Problem, kernels.Kernel, Any, Tensor | None, tuple[Tensor, ...]]:
    """Problem, kernel, loss, one start and its context. Starts are away from the target."""
    if name == "finite":
        ring = problems.finite_chain(states=6, seed=1)
        return ring, ring.kernel(), ring.loss, ring.start(1), ()
    if name == "isir":
        latent = problems.linear_gaussian(data=1, proposal_scale=0.3, proposal_shift=0.2)
        return latent, latent.kernel(), latent.loss, None, (latent.data,)
    target = problems.skewed(1)
    kernel: kernels.Kernel = (
        kernels.MALA(target.log_density, 1.0)
        if name == "mala"
        else kernels.RWMH(target.log_density, 3.0)
    )
    start = 2.0 if name == "mala" else 6.0
    return target, kernel, target.loss, start * target.start(1), ()


def summarise(parts: dict[str, Any]) -> dict[str, Any]:
    """The numbers that matter, each a map from kernel to number, and the fits in full."""
    mlmc = {part["kernel"]: part for part in parts.values() if part["estimator"] == "mlmc"}
    plain = {part["kernel"]: part for part in parts.values() if part["estimator"] == "average"}

    def fitted(which: dict[str, Any], quantity: str, field: str) -> dict[str, float]:
        return {name: part["fits"][quantity][field] for name, part in which.items()}

    return {
        "bias_slope": fitted(mlmc, "bias", "slope"),
        "bias_slope_se": fitted(mlmc, "bias", "slope_se"),
        "second_moment_r2": fitted(mlmc, "second_moment", "r2"),
        "third_moment_slope": fitted(mlmc, "third_moment", "slope"),
        "third_moment_slope_se": fitted(mlmc, "third_moment", "slope_se"),
        "cost_ratio": {
            name: math.fsum(r["cost"] / r["expected_cost"] for r in part["rows"])
            / len(part["rows"])
            for name, part in mlmc.items()
        },
        "average_bias_slope": fitted(plain, "bias", "slope"),
        "average_cost_slope": fitted(plain, "cost", "slope"),
        "autocorrelation_time": {n: part["autocorrelation_time"] for n, part in mlmc.items()},
        "acceptance": {name: part["acceptance"] for name, part in mlmc.items()},
        "consistency": {
            name: max(row["check"] for row in part["levels"]) for name, part in mlmc.items()
        },
        "levels": {name: part["levels"] for name, part in mlmc.items()},
        "fits": {name: part["fits"] for name, part in mlmc.items()},
    }


def _print(summary: dict[str, Any], config: Scaling, console: Console) -> None:
    table = Table(title="MLMC against T: measured, and what theory says")
    for name in ("kernel", "bias", "E‖Ĥ‖² in log T", "E‖Ĥ‖³", "cost", "τ", "levels"):
        table.add_column(name, justify="left" if name == "kernel" else "right", no_wrap=True)
    table.add_row("theory", "T^-1", "R² = 1", "≤ T^0.5", "1", "", "< 1", style="dim")
    for name in KERNELS:
        table.add_row(
            name,
            f"T^{summary['bias_slope'][name]:.2f} ± {summary['bias_slope_se'][name]:.2f}",
            f"R² = {summary['second_moment_r2'][name]:.4f}",
            f"T^{summary['third_moment_slope'][name]:.2f}",
            f"{summary['cost_ratio'][name]:.3f}",
            f"{summary['autocorrelation_time'][name]:.1f}",
            f"{summary['consistency'][name]:.2f}",
        )
    console.print(table)
    slopes = ", ".join(f"{s:.2f}" for s in summary["average_cost_slope"].values())
    console.print(
        "cost: measured over κ + 2^-κ; τ: autocorrelation time; levels: largest consistency "
        f"check of the multilevel test. Cost slopes of the plain average: {slopes}."
    )
    console.print(f"figure: {config.folder / 'scaling.png'}", style="bold", highlight=False)


__all__ = ["EFFORT", "KERNELS", "draw", "measure", "run", "setting", "summarise"]
