"""The figures of a reproduction, drawn from its run folders alone.

The paper's four, ‖∇V(θ_N)‖² and test NLL for AMSGrad and for Adagrad, each against epochs and
against computational budget, in network evaluations and in seconds; the level histogram; the cost
of an iteration. A panel is a function of axes, so that files with two panels and the single panels
of the report are the same drawing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from mlmcgrad.experiments.plots import COLOURS, MARKERS, TEXT_AS_TEXT, panels
from mlmcgrad.experiments.reproduce import curves
from mlmcgrad.experiments.reproduce.curves import Curve
from mlmcgrad.experiments.reproduce.gather import (
    LABELS,
    OPTIMIZERS,
    Array,
    Reproduction,
    TrainingRun,
)

FIGURES = "figures"
QUANTITIES = {"gradient": "‖∇V(θ)‖²", "nll": "test NLL (nats per image)"}
AXES = {
    "epoch": "epochs",
    "evaluations": "network evaluations (millions)",
    "seconds": "seconds of training",
}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNIT = {"epoch": 1.0, "evaluations": 1e-6, "seconds": 1.0}

Panel: TypeAlias = Callable[[Axes], None]


def draw(reproduction: Reproduction, folder: Path) -> list[Path]:
    """Write all figures, as PNG and SVG, into a folder; returns the PNG files."""
    figures = {
        f"{quantity}-{optimizer}{ending}": [
            tests(reproduction, optimizer, quantity, axis) for axis in ("epoch", budget)
        ]
        for optimizer in reproduction.optimizers
        for quantity in QUANTITIES
        for budget, ending in (("evaluations", ""), ("seconds", "-seconds"))
    }
    figures["main"] = main(reproduction)
    figures["levels"] = [levels(reproduction)]
    figures["cost"] = [cost(reproduction, name) for name in ("evaluations", "seconds")]
    paths = []
    for name, drawn in figures.items():
        if not drawn:
            continue
        rows = 2 if name == "main" else 1
        with panels(len(drawn), folder / name, rows, TEXT_AS_TEXT) as (_, axes):
            for panel, where in zip(drawn, axes, strict=True):
                panel(where)
        paths.append(folder / f"{name}.png")
    return paths


def main(reproduction: Reproduction) -> list[Panel]:
    """The panels of the main figure: test NLL, then ‖∇V‖², against budget, for each optimizer."""
    return [
        tests(reproduction, optimizer, quantity, "evaluations")
        for quantity in ("nll", "gradient")
        for optimizer in reproduction.optimizers
    ]


def tests(reproduction: Reproduction, optimizer: str, quantity: str, axis: str) -> Panel:
    """All methods: a quantity of the tests against epochs, network evaluations or seconds."""

    def panel(axes: Axes) -> None:
        found = {
            m: curves.tests(reproduction.of(m, optimizer), quantity, axis)
            for m in reproduction.methods
        }
        drawn = {m: _scaled(c, _UNIT[axis]) for m, c in found.items() if c is not None}
        axes.set(xlabel=AXES[axis], ylabel=QUANTITIES[quantity], title=OPTIMIZERS[optimizer])
        if not drawn:
            _empty(axes)
            return
        floor = _floor(drawn) if quantity == "gradient" else None
        left_out = sum(_curve(axes, method, curve, floor) for method, curve in drawn.items())
        if floor is not None:
            _rate(axes, reproduction, optimizer, axis)
            axes.set_yscale("log")
            axes.set_ylim(bottom=floor)
            _log_ticks(axes, "y")
        axes.set_xscale("log")
        _log_ticks(axes, "x")
        note = f"\n{left_out} point{'s' * (left_out > 1)} not drawn: mean ≤ 0" if left_out else ""
        _legend(axes, drawn, note=note)

    return panel


def levels(reproduction: Reproduction) -> Panel:
    """How often each level was drawn, against its law 2⁻ᵏ."""

    def panel(axes: Axes) -> None:
        found = curves.levels(reproduction)
        axes.set(xlabel="level K", ylabel="share of the draws", title="Levels of MLMC")
        if found is None:
            _empty(axes)
            return
        total = np.add(found.used, found.beyond)
        axes.bar(
            found.level,
            total,
            color="#F3CDB3",
            edgecolor=COLOURS["mlmc"],
            hatch="////",
            lw=0.6,
            label="above Tₙ: a chain of length 1 instead",
        )
        axes.bar(found.level, found.used, color=COLOURS["mlmc"], label="within Tₙ: run")
        axes.plot(
            found.level, found.law, "_", ms=13, mew=2, color=COLOURS["theory"], label="law 2⁻ᵏ"
        )
        axes.set_yscale("log")
        axes.set_ylim(0.5 * found.law[-1], 2.0)
        names = [*map(str, found.level[:-1]), f"≥{found.level[-1]}"]
        every = 1 if len(names) <= 14 else 2
        axes.set_xticks(found.level[::-every], names[::-every], fontsize=8)
        axes.grid(axis="x", visible=False)
        _log_ticks(axes, "y")
        axes.legend(fontsize=8, title=f"{found.draws:,} draws", title_fontsize=8, alignment="left")

    return panel


def cost(reproduction: Reproduction, name: str) -> Panel:
    """What an iteration costs as T_n grows: evaluations a picture, or time; all optimizers."""

    def panel(axes: Axes) -> None:
        label = "evaluations per picture" if name == "evaluations" else "milliseconds"
        axes.set(xlabel="iteration", ylabel=label, title="Cost of an iteration")
        drawn = {}
        for method in reproduction.methods:
            runs = [run for o in reproduction.optimizers for run in reproduction.of(method, o)]
            found = curves.cost(runs, name)
            if found is None:
                continue
            unit = 1.0 / runs[0].settings["batch_size"] if name == "evaluations" else 1e3
            drawn[method] = Curve(
                found.x, unit * found.mean, unit * found.low, unit * found.high, found.seeds
            )
            _curve(axes, method, drawn[method], None)
        if not drawn:
            _empty(axes)
            return
        for which, scale in (("x", axes.set_xscale), ("y", axes.set_yscale)):
            scale("log")
            _log_ticks(axes, which)
        _legend(axes, drawn, "runs")

    return panel


def _curve(axes: Axes, method: str, curve: Curve, floor: float | None) -> int:
    """Bold mean and band; returns how many points a logarithmic axis cannot show."""
    colour = COLOURS[method]
    mean, low, high = curve.mean, curve.low, curve.high
    if floor is not None:
        mean = np.where(mean > 0.0, mean, np.nan)
        low, high = np.maximum(low, floor), np.maximum(high, floor)
    if curve.seeds > 1:
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.18, lw=0)
    axes.plot(
        curve.x,
        mean,
        color=colour,
        marker=MARKERS[method],
        ms=4.5,
        mec="white",
        mew=0.6,
        lw=2.2,
        label=LABELS[method],
    )
    return int(np.isnan(mean).sum())


def _rate(axes: Axes, reproduction: Reproduction, optimizer: str, axis: str) -> None:
    """The dashed curve: N counts iterations, so against budget it is drawn for MLMC's own."""
    every = {
        m: curves.tests(reproduction.of(m, optimizer), "gradient", "iteration")
        for m in reproduction.methods
    }
    known = {m: c for m, c in every.items() if c is not None}
    fixed = curves.anchor(known.values())
    guide = next((m for m in ("mlmc", "mlmc-rb", "br", "iwae") if m in known), None)
    if fixed is None or guide is None:
        return
    runs = reproduction.of(guide, optimizer)
    scale = fixed[1] / curves.rate(np.array(fixed[0]))
    begin, end = known[guide].x[[0, -1]]
    iterations = np.geomspace(max(2.0, begin), max(2.0, end), 60)
    note = (
        f"through the mean at epoch {_place(runs, 'epoch', np.array(fixed[0])):.2g}"
        if axis == "epoch"
        else f"N as in {LABELS[guide]}"
    )
    axes.plot(
        _UNIT[axis] * _place(runs, axis, iterations),
        scale * curves.rate(iterations),
        "--",
        color=COLOURS["theory"],
        lw=1.2,
        label=f"(log N)²/√N, {note}",
    )


def _place(runs: list[TrainingRun], axis: str, iterations: Array) -> Array:
    """Where some iterations are on an axis, in the mean over runs; epochs are linear in them."""
    where = curves.tests(runs, axis, "iteration")
    assert where is not None  # every test says where it was made
    return np.interp(iterations, where.x, where.mean)


def _scaled(curve: Curve, unit: float) -> Curve:
    return Curve(unit * curve.x, curve.mean, curve.low, curve.high, curve.seeds)


def _floor(drawn: dict[str, Curve]) -> float:
    """Where a logarithmic axis ends: bands that reach 0 or less are cut there.

    It leaves room for the legend below what falls.
    """
    values: Array = np.concatenate([curve.mean for curve in drawn.values()])
    positive = values[values > 0.0]
    if not len(positive):
        return 0.1
    least, most = float(positive.min()), float(positive.max())
    return 0.7 * least * (least / most) ** 0.75


def _legend(axes: Axes, drawn: dict[str, Curve], of: str = "seeds", note: str = "") -> None:
    counts = sorted({curve.seeds for curve in drawn.values()})
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    title = f"mean, min to max of {many} {of}" if counts[-1] > 1 else f"one {of[:-1]}"
    axes.legend(
        fontsize=8,
        title=title + note,
        title_fontsize=8,
        alignment="left",
        frameon=True,
        framealpha=0.7,
        edgecolor="none",
    )


def _log_ticks(axes: Axes, which: str) -> None:
    """Plain numbers, as many as there is room for."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    decades = np.log10(high / low)
    subs: tuple[float, ...] = (1.0,) if decades > 3.0 else (1.0, 2.0, 5.0)
    if decades < 0.7:
        subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(_tick))
    axis.set_minor_locator(NullLocator())  # a third of the time and of the file, for no number


def _tick(value: float, _: int | None = None) -> str:
    if 1e-3 <= value < 1e6:
        return f"{value:g}"
    digits, exponent = f"{value:.0e}".split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if digits == "1" else f"{digits}·{power}"


def _empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no complete run", transform=axes.transAxes, ha="center", color="#555555")


__all__ = ["AXES", "FIGURES", "QUANTITIES", "Panel", "cost", "draw", "levels", "main", "tests"]
