"""Proposition 1 in numbers: bias, second and third moment and cost of Ĥ against T.

Four kernels with known answers, MLMC and the plain average of T steps. The theory makes four
predictions about one chain's estimate, for T above the mixing time: the bias falls as 1/T, E‖Ĥ‖²
grows linearly in log T, E‖Ĥ‖³ at most as √T, and the cost is κ + 2^{−κ} transitions. Lines are
fitted where T exceeds a multiple of the integrated autocorrelation time, which is measured first.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from mlmcgrad import kernels, problems
from mlmcgrad.diagnostics import level_test
from mlmcgrad.estimators import MLMC, Average
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.paper.experiments.accuracy import (
    LineFit,
    Quantity,
    accuracy,
    autocorrelation_time,
    fit_power,
)
from mlmcgrad.paper.experiments.folder import Findings, simulated
from mlmcgrad.paper.experiments.plots import COLOURS, CYCLE, log_axes, panels, print_path, table
from mlmcgrad.paper.experiments.settings import Preset, ScalingSettings
from mlmcgrad.paper.runs.pool import Report

KERNELS = ("finite", "rwmh", "mala", "isir")
_LABELS = {"finite": "finite chain", "rwmh": "RWMH", "mala": "MALA", "isir": "i-SIR"}
_STEPS = 400  # of the chains from which autocorrelation times are measured
# A line is fitted where T exceeds this many autocorrelation times: the third moment, dominated by
# the longest chains, takes longest to reach its power of T.
_FROM: dict[Quantity, float] = {"bias": 4.0, "second_moment": 8.0, "third_moment": 64.0}


@dataclass(frozen=True)
class ScalingEffort:
    """How much a preset computes for one kernel."""

    replicates: int  # chains of length 1; longer ones get fewer
    least: int  # chains of the largest length
    highest: int  # the largest T is 2^highest


EFFORT: dict[Preset, dict[str, ScalingEffort]] = {
    "smoke": dict.fromkeys(KERNELS, ScalingEffort(40_000, 200, 6))
    | {"isir": ScalingEffort(8_000, 100, 5)},
    "quick": dict.fromkeys(KERNELS, ScalingEffort(8_000_000, 2_000, 12))
    | {"isir": ScalingEffort(400_000, 500, 10)},
    "full": dict.fromkeys(KERNELS, ScalingEffort(80_000_000, 10_000, 14))
    | {
        "finite": ScalingEffort(40_000_000, 10_000, 14),
        "isir": ScalingEffort(4_000_000, 2_000, 12),
    },
}


def run(settings: ScalingSettings, console: Console) -> dict[str, Any]:
    """Measure in the run folder, draw the figure and print the table; returns the summary."""
    common = {"preset": settings.preset, "seed": settings.seed}
    arguments = {
        f"{name}-{estimator}": {"name": name, "estimator": estimator, **common}
        for name in KERNELS
        for estimator in ("mlmc", "average")
    }
    with simulated(settings, measure, arguments, _summarise, console) as findings:
        _show(findings.summary, console)
        print_path(draw(settings.out, findings), console)
    return findings.summary


def measure(report: Report, name: str, estimator: str, preset: Preset, seed: int) -> dict[str, Any]:
    """Measure one kernel with one estimator: moments and cost for each T, and fitted lines."""
    effort = EFFORT[preset][name]
    generator = torch.Generator().manual_seed(1000 * seed + KERNELS.index(name))
    problem, kernel, loss, x0, context = _example(name)
    chosen = MLMC(2.0) if estimator == "mlmc" else Average(1)
    gradient = MarkovGradient(kernel, loss, chosen, parameters=problem.parameters)
    many = torch.zeros(512, dtype=torch.int64)  # the same start for all chains
    start = None if x0 is None else x0[many]
    time, acceptance = autocorrelation_time(
        gradient, start, *(c[many] for c in context), length=_STEPS, generator=generator
    )
    ladder = accuracy(
        gradient,
        x0,
        *context,
        reference=problem,
        ladder=[2**k for k in range(1, effort.highest + 1)],
        generator=generator,
        replicates=effort.replicates,
        least=effort.least,
        report=lambda share: report(0.9 * share),
    )
    # The short chains of a smoke run leave at least three points.
    longest = 2.0 ** (effort.highest - 2)
    fits: dict[str, LineFit] = {
        quantity: ladder.fit(quantity, min(multiple * time, longest))
        for quantity, multiple in _FROM.items()
    }
    rungs = ladder.rungs
    fits["cost"] = fit_power([rung.length for rung in rungs], [rung.cost for rung in rungs])
    about = {"kernel": name, "estimator": estimator}
    result: dict[str, Any] = {
        **about,
        "rows": [{**about, **dataclasses.asdict(row)} for row in ladder.rows],
        "fits": {key: dataclasses.asdict(fit) for key, fit in fits.items()},
        "autocorrelation_time": time,
        "acceptance": acceptance,
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


def _example(
    name: str,
) -> tuple[problems.Problem, kernels.Kernel, Any, Tensor | None, tuple[Tensor, ...]]:
    """Return problem, kernel, loss, one start (far from stationarity) and its context."""
    if name == "finite":
        ring = problems.finite_chain(states=6, seed=1)
        return ring, ring.kernel(), ring.loss, ring.start(1), ()
    if name == "isir":
        latent = problems.linear_gaussian(data=1, proposal_scale=0.3, proposal_shift=0.2)
        return latent, latent.kernel(), latent.loss, None, (latent.data,)
    target = problems.skewed(1)
    if name == "mala":
        return target, kernels.MALA(target.log_density, 1.0), target.loss, 2.0 * target.start(1), ()
    return target, kernels.RWMH(target.log_density, 3.0), target.loss, 6.0 * target.start(1), ()


def _summarise(parts: dict[str, Any]) -> Findings:
    """Return one row per kernel, estimator and T; the summary has the numbers of each kernel."""
    summary: dict[str, Any] = {}
    for part in parts.values():
        fitted = {key: value for key, value in part.items() if key not in ("kernel", "rows")}
        if part["estimator"] == "mlmc":
            ratios = [row["cost"] / row["expected_cost"] for row in part["rows"]]
            fitted["cost_ratio"] = math.fsum(ratios) / len(ratios)
            fitted["consistency"] = max(row["check"] for row in part["levels"])
        summary.setdefault(part["kernel"], {})[fitted.pop("estimator")] = fitted
    return Findings([row for part in parts.values() for row in part["rows"]], summary)


def draw(folder: Path, findings: Findings) -> Path:
    """Draw bias, second moment, third moment and cost against T, one colour per kernel."""
    # Moments are relative to those of the shortest average, so that all kernels fit into one panel.
    units = {r["kernel"]: r for r in reversed(findings.rows) if r["estimator"] == "average"}
    moments, unit = ("second_moment", "third_moment"), "relative to average of 2"
    rows = [r | {m: r[m] / units[r["kernel"]][m] for m in moments} for r in findings.rows]
    visible = [r for r in rows if r["bias_low"] > 0.0]  # the other biases are noise
    lengths = sorted({r["length"] for r in rows})
    with panels(4, folder / "scaling", rows=2) as (_, (bias, second, third, cost)):
        for i, name in enumerate(dict.fromkeys(r["kernel"] for r in rows)):
            colour, label = CYCLE[i], _LABELS[name]
            for axes, of, y in (
                (bias, visible, "bias"),
                (second, rows, moments[0]),
                (third, rows, moments[1]),
            ):
                axes.plot(
                    *_columns(of, name, "mlmc", y), "o-", ms=4, lw=1.5, color=colour, label=label
                )
                axes.plot(*_columns(of, name, "average", y), "x", ms=6, color=colour, alpha=0.7)
            x, y, low, high = _columns(visible, name, "mlmc", "bias", "bias_low", "bias_high")
            bias.errorbar(x, y, yerr=(y - low, high - y), fmt="none", ecolor=colour)
            x, y = _columns(rows, name, "mlmc", "cost")
            cost.plot(x, y, "o", mfc="none", ms=3 + 2 * i, color=colour, label=label)
        theory: Any = {"ls": "--", "color": COLOURS["theory"], "lw": 1.0}
        largest = max((r["bias"] * r["length"] for r in visible), default=1.0)
        scale = 2.0 * max(r["third_moment"] for r in rows) / math.sqrt(lengths[-1])
        bias.plot(lengths[2:], [1.6 * largest / t for t in lengths[2:]], label="slope −1", **theory)
        roots = [scale * math.sqrt(t) for t in lengths[3:]]
        third.plot(lengths[3:], roots, label="slope ½", **theory)
        expected = [math.log2(t) + 1.0 / t for t in lengths]
        cost.plot(lengths, expected, label="κ + 2^−κ", **theory)
        cost.plot(lengths, lengths, ":", color=COLOURS["average"], label="plain average: T")
        bias.set(title="Bias: o MLMC (95 % interval), × plain average", ylabel="bias of Ĥ (norm)")
        second.set(title="Second moment: o MLMC, × plain average", ylabel=f"E‖Ĥ‖², {unit}")
        third.set(title="Third moment: o MLMC, × plain average", ylabel=f"E‖Ĥ‖³, {unit}")
        cost.set(title="Cost of MLMC", ylabel="transitions per estimate (mean)")
        for axes in (bias, third, cost):
            log_axes(axes, "y")
        for axes in (bias, second, third, cost):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_xlabel("truncation T (chain length)")
            axes.legend(fontsize=8)
    return folder / "scaling.png"


def _columns(
    rows: list[dict[str, Any]], kernel: str, estimator: str, *names: str
) -> NDArray[np.float64]:
    """Return the lengths and other columns for one kernel and one estimator."""
    mine = [r for r in rows if (r["kernel"], r["estimator"]) == (kernel, estimator)]
    return np.array([[r[name] for r in mine] for name in ("length", *names)])


def _show(summary: dict[str, Any], console: Console) -> None:
    """Print the prediction of the theory, and below it one line per kernel."""
    shown = table(
        "MLMC against T: theory and measurements",
        *("kernel", "bias", "E‖Ĥ‖² in log T", "E‖Ĥ‖³", "cost", "τ", "levels"),
    )
    shown.add_row("theory", "T^-1", "R² = 1", "≤ T^0.5", "1", "", "< 1", style="dim")
    for name, numbers in summary.items():
        mlmc, (bias, second, third) = numbers["mlmc"], map(numbers["mlmc"]["fits"].get, _FROM)
        shown.add_row(
            name,
            f"T^{bias['slope']:.2f} ± {bias['slope_se']:.2f}",
            f"R² = {second['r2']:.4f}",
            f"T^{third['slope']:.2f}",
            f"{mlmc['cost_ratio']:.3f}",
            f"{mlmc['autocorrelation_time']:.1f}",
            f"{mlmc['consistency']:.2f}",
        )
    console.print(shown)
    plain = [numbers["average"]["fits"]["cost"]["slope"] for numbers in summary.values()]
    slopes = ", ".join(f"{slope:.2f}" for slope in plain)
    console.print(
        "cost: measured / (κ + 2^-κ); τ: autocorrelation time; levels: largest consistency check "
        f"of the multilevel test. Cost slopes of the plain average: {slopes}."
    )
