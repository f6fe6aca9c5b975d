"""The figure of `scaling`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from mlmcgrad.experiments.folder import Findings
from mlmcgrad.experiments.plots import COLOURS, CYCLE, log_axes, panels

LABELS = {"finite": "finite chain", "rwmh": "RWMH", "mala": "MALA", "isir": "i-SIR"}
_MOMENTS = ("second_moment", "third_moment")
_UNIT = "relative to average of 2"

Rows = list[dict[str, Any]]


def draw(folder: Path, findings: Findings | None = None) -> Path:
    """Bias, second moment, third moment and cost against T, one colour per kernel."""
    rows = _relative((findings or Findings.read(folder)).rows)
    visible = [r for r in rows if r["bias_low"] > 0.0]  # the other biases are noise
    lengths = sorted({r["length"] for r in rows})
    with panels(4, folder / "scaling", rows=2) as (_, (bias, second, third, cost)):
        for i, name in enumerate(dict.fromkeys(r["kernel"] for r in rows)):
            colour = CYCLE[i]
            _draw_both(bias, visible, name, "bias", colour)
            _error_bars(bias, _select(visible, name, "mlmc"), colour)
            _draw_both(second, rows, name, "second_moment", colour)
            _draw_both(third, rows, name, "third_moment", colour)
            x, y = _points(_select(rows, name, "mlmc"), "cost")
            cost.plot(x, y, "o", mfc="none", ms=3 + 2 * i, color=colour, label=LABELS[name])
        largest = max((r["bias"] * r["length"] for r in visible), default=1.0)
        _draw_theory(bias, lengths[2:], [1.6 * largest / t for t in lengths[2:]], "slope −1")
        scale = 2.0 * max(r["third_moment"] for r in rows) / math.sqrt(lengths[-1])
        _draw_theory(third, lengths[3:], [scale * math.sqrt(t) for t in lengths[3:]], "slope ½")
        _draw_theory(cost, lengths, [math.log2(t) + 1.0 / t for t in lengths], "κ + 2^−κ")
        cost.plot(lengths, lengths, ":", color=COLOURS["average"], label="plain average: T")
        bias.set(title="Bias: o MLMC (95 % interval), × plain average", ylabel="bias of Ĥ (norm)")
        second.set(title="Second moment: o MLMC, × plain average", ylabel=f"E‖Ĥ‖², {_UNIT}")
        third.set(title="Third moment: o MLMC, × plain average", ylabel=f"E‖Ĥ‖³, {_UNIT}")
        cost.set(title="Cost of MLMC", ylabel="transitions per estimate (mean)")
        bias.set_yscale("log")
        third.set_yscale("log")
        log_axes(cost, "y")
        for axes in (bias, second, third, cost):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("truncation T (chain length)")
            axes.legend(fontsize=8)
    return folder / "scaling.png"


def _relative(rows: Rows) -> Rows:
    """Moments relative to those of the shortest average, so that all kernels fit into one panel."""
    units = {r["kernel"]: r for r in reversed(rows) if r["estimator"] == "average"}
    return [r | {name: r[name] / units[r["kernel"]][name] for name in _MOMENTS} for r in rows]


def _select(rows: Rows, kernel: str, estimator: str) -> Rows:
    return [r for r in rows if r["kernel"] == kernel and r["estimator"] == estimator]


def _points(rows: Rows, quantity: str) -> tuple[list[float], list[float]]:
    return [r["length"] for r in rows], [r[quantity] for r in rows]


def _draw_both(axes: Axes, rows: Rows, kernel: str, quantity: str, colour: str) -> None:
    x, y = _points(_select(rows, kernel, "mlmc"), quantity)
    axes.plot(x, y, "o-", ms=4, lw=1.5, color=colour, label=LABELS[kernel])
    x, y = _points(_select(rows, kernel, "average"), quantity)
    axes.plot(x, y, "x", ms=6, color=colour, alpha=0.7)


def _error_bars(axes: Axes, rows: Rows, colour: str) -> None:
    below = [r["bias"] - r["bias_low"] for r in rows]
    above = [r["bias_high"] - r["bias"] for r in rows]
    axes.errorbar(*_points(rows, "bias"), yerr=[below, above], fmt="none", ecolor=colour)


def _draw_theory(axes: Axes, x: list[float], y: list[float], label: str) -> None:
    axes.plot(x, y, "--", color=COLOURS["theory"], lw=1.0, label=label)
