"""The figure of `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from mlmcgrad.experiments.folder import Findings
from mlmcgrad.experiments.plots import COLOURS, log_axes, panels


def draw(folder: Path, findings: Findings | None = None) -> Path:
    """The bias of one gradient against its cost, alone and beside training with two step sizes."""
    findings = findings or Findings.read(folder)
    ladder, curves = findings.summary["ladder"], findings.rows
    with panels(1, folder / "bias-cost") as (_, (axes,)):
        _draw_bias(axes, ladder)
    with panels(3, folder / "demo") as (_, (left, *rest)):
        _draw_bias(left, ladder)
        for axes, steps in zip(rest, dict.fromkeys(c["steps"] for c in curves), strict=True):
            _draw_training(axes, steps, [c for c in curves if c["steps"] == steps])
    return folder / "demo.png"


def _draw_bias(axes: Axes, ladder: list[dict[str, Any]]) -> None:
    length, bias = [r["length"] for r in ladder], [r["bias"] for r in ladder]
    axes.plot(length, bias, "o-", color=COLOURS["average"], label="average of T steps")
    cost = [r["mlmc_cost"] for r in ladder]
    axes.plot(cost, bias, "s-", color=COLOURS["mlmc"], label="MLMC with truncation T")
    for r in ladder[2::3]:
        axes.annotate(
            f"T = {r['length']}",
            (r["mlmc_cost"], r["bias"]),
            xytext=(-8, -12),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    axes.set(xlabel="transitions per estimate (mean)", ylabel="norm of the bias (exact)")
    axes.set_title("Bias of one gradient against its cost")
    log_axes(axes)
    axes.legend()


def _draw_training(axes: Axes, steps: str, curves: list[dict[str, Any]]) -> None:
    for method in dict.fromkeys(c["method"] for c in curves):
        runs = [c for c in curves if c["method"] == method]
        x, values = runs[0]["transitions"], list(zip(*(c["excess"] for c in runs), strict=True))
        low, high = [min(v) for v in values], [max(v) for v in values]
        mean = [sum(v) / len(v) for v in values]
        axes.plot(x, mean, color=COLOURS[method], label=runs[0]["label"])
        axes.fill_between(x, low, high, color=COLOURS[method], alpha=0.2, lw=0)
    axes.set(xlabel="transitions per chain", ylabel="V(θ) − min V", yscale="log")
    axes.set_title(f"Training, {steps} steps (mean, range of {len(runs)} runs)")
    log_axes(axes, "x")
    axes.legend()
