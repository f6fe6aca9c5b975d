"""The figure of `scaling`, drawn from its run folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from mlmcgrad.experiments.plots import COLOURS, CYCLE, panels
from mlmcgrad.runs import folder as records

LABELS = {"finite": "finite chain", "rwmh": "RWMH", "mala": "MALA", "isir": "i-SIR"}


def draw(folder: Path) -> None:
    """Bias, second moment, third moment and cost against T, one colour a kernel."""
    rows = records.read_lines(folder / records.METRICS)
    with panels(4, folder / "scaling", rows=2) as (_, (bias, second, third, cost)):
        for (name, label), colour in zip(LABELS.items(), CYCLE, strict=False):
            mlmc = _select(rows, name, "mlmc")
            plain = _select(rows, name, "average")
            seen = [r for r in mlmc if r["bias_low"] > 0.0]  # the others are noise
            bias.errorbar(
                [r["length"] for r in seen],
                [r["bias"] for r in seen],
                yerr=[
                    [r["bias"] - r["bias_low"] for r in seen],
                    [r["bias_high"] - r["bias"] for r in seen],
                ],
                fmt="o-",
                ms=4,
                lw=1.5,
                color=colour,
                label=label,
            )
            below = [r for r in plain if r["bias_low"] > 0.0]
            bias.plot(
                [r["length"] for r in below],
                [r["bias"] for r in below],
                "x",
                ms=6,
                color=colour,
                alpha=0.7,
            )
            _moment(second, mlmc, plain, "second_moment", colour, label)
            _moment(third, mlmc, plain, "third_moment", colour, label)
            cost.plot(
                [r["length"] for r in mlmc],
                [r["cost"] for r in mlmc],
                "o",
                mfc="none",
                ms=3 + 2 * list(LABELS).index(name),
                color=colour,
                label=label,
            )
        lengths = sorted({r["length"] for r in rows})
        _finish(bias, "bias of Ĥ (norm)", "Bias: o MLMC (95 % interval), × plain average")
        first = max((r["bias"] * r["length"] for r in rows if r["bias_low"] > 0.0), default=1.0)
        _theory(bias, lengths[2:], [1.6 * first / t for t in lengths[2:]], "slope −1")
        _finish(
            second,
            "E‖Ĥ‖², relative to average of 2",
            "Second moment: o MLMC, × plain average",
            log_y=False,
        )
        _finish(third, "E‖Ĥ‖³, relative to average of 2", "Third moment: o MLMC, × plain average")
        top = max(r["third_moment"] / _first(rows, r)["third_moment"] for r in rows)
        scale = 2.0 * top / math.sqrt(lengths[-1])
        _theory(third, lengths[3:], [scale * math.sqrt(t) for t in lengths[3:]], "slope ½")
        _theory(cost, lengths, [math.log2(t) + 1.0 / t for t in lengths], "κ + 2^−κ")
        cost.plot(lengths, lengths, ":", color=COLOURS["average"], label="plain average: T")
        _finish(cost, "transitions per estimate (mean)", "Cost of MLMC")
        for axes in (bias, second, third, cost):
            axes.legend(fontsize=8)


def _moment(
    axes: Axes,
    mlmc: list[dict[str, Any]],
    plain: list[dict[str, Any]],
    quantity: str,
    colour: str,
    label: str,
) -> None:
    """Relative to the shortest chain, so that the kernels fit into one panel."""
    unit = plain[0][quantity]
    axes.plot(
        [r["length"] for r in mlmc],
        [r[quantity] / unit for r in mlmc],
        "o-",
        ms=4,
        lw=1.5,
        color=colour,
        label=label,
    )
    axes.plot(
        [r["length"] for r in plain],
        [r[quantity] / unit for r in plain],
        "x",
        ms=6,
        color=colour,
        alpha=0.7,
    )


def _select(rows: list[dict[str, Any]], kernel: str, estimator: str) -> list[dict[str, Any]]:
    return [r for r in rows if r["kernel"] == kernel and r["estimator"] == estimator]


def _first(rows: list[dict[str, Any]], like: dict[str, Any]) -> dict[str, Any]:
    return _select(rows, like["kernel"], "average")[0]


def _theory(axes: Axes, x: list[float], y: list[float], label: str) -> None:
    axes.plot(x, y, "--", color=COLOURS["theory"], lw=1.0, label=label)


def _finish(axes: Axes, ylabel: str, title: str, log_y: bool = True) -> None:
    axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log")
    axes.set(xlabel="truncation T (chain length)", ylabel=ylabel, title=title)


__all__ = ["draw"]
