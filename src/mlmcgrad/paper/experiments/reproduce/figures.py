"""The figures of a reproduction: each panel is drawn once, for files and report.

The paper's four, ‖∇V(θ_N)‖² and test NLL for AMSGrad and for Adagrad, each against epochs and
against computational budget, in network evaluations and in seconds; the level histogram; the cost
of an iteration.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from mlmcgrad._files import write_atomically
from mlmcgrad.paper.experiments.plots import COLOURS, MARKERS, STYLE, log_axes
from mlmcgrad.paper.experiments.reproduce.data import Array
from mlmcgrad.paper.experiments.reproduce.findings import (
    AXES,
    COSTS,
    QUANTITIES,
    Curve,
    Curves,
    ReproductionFindings,
)
from mlmcgrad.paper.experiments.reproduce.settings import LABELS, OPTIMIZERS

_UNIT = {"epoch": 1.0, "evaluations": 1e-6, "seconds": 1.0}
_SIZE = (4.8, 3.6)
# Text stays text, in the reader's font: half the file size, and searchable.
_STYLE: Any = {
    **STYLE,
    "svg.fonttype": "none",
    "legend.frameon": True,
    "legend.framealpha": 0.7,
    "legend.edgecolor": "none",
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
}
_LINE: Any = {"lw": 2.2, "ms": 4.5, "mec": "white", "mew": 0.6}
_ABOVE: Any = {"color": "#F3CDB3", "edgecolor": COLOURS["mlmc"], "hatch": "////", "lw": 0.6}
_FONTS = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Drawing:
    """A panel in the formats of the files and of the page."""

    svg: str
    png: bytes
    alt: str


def draw(findings: ReproductionFindings, folder: Path) -> dict[str, Drawing]:
    """Draw every panel and write it as PNG and SVG, and the main ones together as `main.png`."""
    curves, on = findings.curves, f"on {findings.name}"
    optimizers = list(dict.fromkeys(optimizer for optimizer, *_ in curves.tests))
    drawings = {"levels": _render(f"Share of each level, and its law, {on}", levels, curves)}
    for name, unit in COSTS.items():
        alt = f"Cost of an iteration in {unit} against iterations, {on}"
        drawings[f"cost-{name}"] = _render(alt, cost, curves, name)
    for optimizer in optimizers:
        for quantity, of in QUANTITIES.items():
            for axis, against in AXES.items():
                alt = f"{of} against {against}, {OPTIMIZERS[optimizer]}, {on}"
                drawing = _render(alt, tests, curves, optimizer, quantity, axis)
                drawings[f"{quantity}-{optimizer}-{axis}"] = drawing
    for name, drawing in drawings.items():
        write_atomically(folder / f"{name}.svg", drawing.svg.encode())
        write_atomically(folder / f"{name}.png", drawing.png)
    if optimizers:
        rows = [
            [drawings[f"{q}-{o}-evaluations"].png for o in optimizers] for q in ("nll", "gradient")
        ]
        write_atomically(folder / "main.png", _together(rows))
    return drawings


def _render(alt: str, draw_panel: Callable[..., None], *arguments: object) -> Drawing:
    svg, png = io.StringIO(), io.BytesIO()
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=_SIZE)
        try:
            draw_panel(axes, *arguments)
            # Fixed margins: panels below each other line up, and no layout pass is needed.
            figure.subplots_adjust(left=0.155, right=0.955, bottom=0.14, top=0.91)
            figure.savefig(svg, format="svg", metadata={"Date": None})
            figure.savefig(png, format="png", metadata={"Software": None})
        finally:
            plt.close(figure)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", svg.getvalue(), flags=re.DOTALL)
    text = re.sub(r"(font: [^;\"]*?px) [^;\"]*", rf"\1 {_FONTS}", text)
    return Drawing(text, png.getvalue(), alt)


def _together(rows: list[list[bytes]]) -> bytes:
    """Join rows of pictures of the same size into one picture."""
    tiles = [
        [np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) for png in row] for row in rows
    ]
    buffer = io.BytesIO()
    Image.fromarray(np.vstack([np.hstack(row) for row in tiles])).save(buffer, "png")
    return buffer.getvalue()


def tests(axes: Axes, curves: Curves, optimizer: str, quantity: str, axis: str) -> None:
    """Draw a quantity of all methods against epochs, network evaluations or seconds."""
    axes.set(xlabel=AXES[axis], ylabel=QUANTITIES[quantity], title=OPTIMIZERS[optimizer])
    every = {m: curves.tests.get((optimizer, quantity, axis, m)) for m in LABELS}
    drawn = {method: curve for method, curve in every.items() if curve is not None}
    if not drawn:
        _empty(axes)
        return
    floor = _floor(drawn) if quantity == "gradient" else None
    left_out = sum(_curve(axes, m, curve, floor, _UNIT[axis]) for m, curve in drawn.items())
    if floor is not None:
        _rate(axes, curves, optimizer, axis)
        axes.set_yscale("log")
        axes.set_ylim(bottom=floor)
        log_axes(axes, "y")
    log_axes(axes, "x")
    note = f"\n{left_out} point{'s' * (left_out > 1)} not drawn: mean ≤ 0" if left_out else ""
    _legend(axes, drawn, note=note)


def levels(axes: Axes, curves: Curves) -> None:
    """Draw the share of each level, and its law 2⁻ᵏ."""
    axes.set(xlabel="level K", ylabel="share of the draws", title="Levels of MLMC")
    shares = curves.levels
    if shares is None:
        _empty(axes)
        return
    level, colour = shares.level, COLOURS["mlmc"]
    total = np.add(shares.used, shares.beyond)
    axes.bar(level, total, label="above Tₙ: a chain of length 1 instead", **_ABOVE)
    axes.bar(level, shares.used, color=colour, label="within Tₙ: run")
    axes.plot(level, shares.law, "k_", ms=13, mew=2, label="law 2⁻ᵏ")
    axes.set_yscale("log")
    axes.set_ylim(0.5 * shares.law[-1], 2.0)
    names = [*map(str, level[:-1]), f"≥{level[-1]}"]
    every = 1 if len(names) <= 14 else 2
    axes.set_xticks(level[::-every], names[::-every], fontsize=8)
    axes.grid(axis="x", visible=False)
    log_axes(axes, "y")
    axes.legend(title=f"{shares.draws:,} draws", alignment="left")


def cost(axes: Axes, curves: Curves, name: str) -> None:
    """Draw the cost of an iteration as T_n grows: evaluations per image, or time."""
    axes.set(xlabel="iteration", ylabel=COSTS[name], title="Cost of an iteration")
    drawn = {m: curve for m in LABELS if (curve := curves.costs.get((name, m))) is not None}
    if not drawn:
        _empty(axes)
        return
    for method, curve in drawn.items():
        _curve(axes, method, curve, None)
    log_axes(axes)
    _legend(axes, drawn, "runs")


def _curve(axes: Axes, method: str, curve: Curve, floor: float | None, unit: float = 1.0) -> int:
    """Draw mean and band; return the number of points that a logarithmic axis cannot show."""
    colour = COLOURS[method]
    x, mean, low, high = unit * curve.x, curve.mean, curve.low, curve.high
    if floor is not None:
        mean = np.where(mean > 0.0, mean, np.nan)
        low, high = np.maximum(low, floor), np.maximum(high, floor)
    if curve.seeds > 1:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    axes.plot(x, mean, MARKERS[method] + "-", color=colour, label=LABELS[method], **_LINE)
    return int(np.isnan(mean).sum())


def _rate(axes: Axes, curves: Curves, optimizer: str, axis: str) -> None:
    """Draw the dashed rate; against a budget, N counts the iterations of one method."""
    rate = curves.rates.get((optimizer, axis))
    if rate is None:
        return
    where = f"through the mean at epoch {rate.anchor:.2g}"
    label = f"(log N)²/√N, {where if axis == 'epoch' else f'N as in {LABELS[rate.method]}'}"
    axes.plot(_UNIT[axis] * rate.x, rate.y, "--", color=COLOURS["theory"], lw=1.2, label=label)


def _floor(drawn: dict[str, Curve]) -> float:
    """Return the lower end of a logarithmic axis, with room for the legend below the curves.

    Bands that reach 0 or less are cut there.
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
    columns = 1 if len(drawn) <= 5 else 2
    axes.legend(title=title + note, alignment="left", ncols=columns, columnspacing=1.0)


def _empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="#555555")
