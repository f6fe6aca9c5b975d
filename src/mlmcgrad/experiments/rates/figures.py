"""The figure of `rates`, from its run folder: measured curves below, evaluated bounds above."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from mlmcgrad.experiments.plots import COLOURS, CYCLE, log_axes, panels
from mlmcgrad.runs import folder as records

_COLOURS = {0.0: COLOURS["short"], 0.25: CYCLE[4], 0.5: COLOURS["average"], 1.0: COLOURS["mlmc"]}
_TITLES = {"sgd": "Stochastic gradient", "adagrad": "MLMC-Adagrad", "amsgrad": "MLMC-AMSGrad"}


def draw(folder: Path) -> None:
    """Write rates.png and rates.svg into the run folder."""
    lines = records.read_lines(folder / records.METRICS)
    summary = records.read_json(folder / records.SUMMARY)
    with panels(len(_TITLES), folder / "rates") as (figure, spaces):
        figure.set_size_inches(5.0 * len(_TITLES), 6.6)
        measured_axes: list[Axes] = []
        bound_axes: list[Axes] = []
        for space, name in zip(spaces, _TITLES, strict=True):
            top, bottom = _split(figure, space)
            for run in (r for r in summary["runs"] if r["optimizer"] == name):
                mine = [x for x in lines if x["optimizer"] == name and x["alpha"] == run["alpha"]]
                _draw_run(top, bottom, run, mine)
            _finish(top, bottom, name, summary["constants"]["G"] ** 2)
            bound_axes.append(top)
            measured_axes.append(bottom)
        for group in (measured_axes, bound_axes):
            low = min(axes.get_ylim()[0] for axes in group)
            high = max(axes.get_ylim()[1] for axes in group)
            for axes in group:
                axes.set_ylim(low, high)
        bound_axes[0].set_ylabel("bound of E‖∇V(θ_R)‖²")
        measured_axes[0].set_ylabel("measured E‖∇V(θ_R)‖² (bands: 95 % for the mean)")


def _split(figure: Figure, space: Axes) -> tuple[Axes, Axes]:
    """Two axes, one above the other, in the place of one."""
    place = space.get_subplotspec()
    assert place is not None  # made by subplots
    grid = place.subgridspec(2, 1, height_ratios=(1.0, 2.0), hspace=0.08)
    space.remove()
    bottom = figure.add_subplot(grid[1])
    top = figure.add_subplot(grid[0], sharex=bottom)
    top.tick_params(labelbottom=False)
    return top, bottom


def _draw_run(top: Axes, bottom: Axes, run: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    colour = _COLOURS[run["alpha"]]
    N, mean = [x["N"] for x in lines], [x["measured"] for x in lines]
    half = [1.96 * x["standard_error"] for x in lines]
    bottom.plot(N, mean, color=colour, label=f"α = {run['alpha']:g}")
    bottom.fill_between(
        N,
        [m - h for m, h in zip(mean, half, strict=True)],
        [m + h for m, h in zip(mean, half, strict=True)],
        color=colour,
        alpha=0.25,
        lw=0,
    )
    fitted = [x for x in lines if x["N"] >= run["fitted_from"]]
    if run["alpha"] > 0.0:
        rate = [_rate(x["N"], run) for x in fitted]
        scale = fitted[0]["measured"] / rate[0]
        bottom.plot([x["N"] for x in fitted], [scale * r for r in rate], "--", color=colour, lw=1.4)
    else:
        bottom.axhline(run["level"], ls="-.", color=colour, lw=1.4)
        bottom.plot(N, [x["recent"] for x in lines], color=colour, lw=1.0)
    top.plot(N, [x["bound"] for x in lines], ":", color=colour, lw=2.2)


def _rate(N: int, run: dict[str, Any]) -> float:
    return N ** run["predicted_exponent"] * math.log(N) ** run["log_power"]


def _finish(top: Axes, bottom: Axes, name: str, square: float) -> None:
    top.axhline(square, color=COLOURS["theory"], lw=0.8)
    top.set_title(_TITLES[name])
    log_axes(bottom)
    bottom.xaxis.set_major_locator(LogLocator())
    top.set_yscale("log")
    top.yaxis.set_minor_formatter(NullFormatter())
    bottom.set_xlabel("iterations N")
    handles, labels = bottom.get_legend_handles_labels()
    black = COLOURS["theory"]
    handles += [
        Line2D([], [], color=black, ls="--", lw=1.4),
        Line2D([], [], color=COLOURS["short"], ls="-.", lw=1.4),
        Line2D([], [], color=COLOURS["short"], lw=1.0),
    ]
    more = ["predicted rate", "α = 0: level of its bias", "α = 0: latest iterates only"]
    bottom.legend(handles, [*labels, *more], loc="lower left", fontsize=8.5)
    above = [Line2D([], [], color=black, ls=":", lw=2.2), Line2D([], [], color=black, lw=0.8)]
    labels = ["evaluated bound", "G², without a theorem"]
    if name == "sgd":  # once: its bound leaves room
        top.legend(above, labels, loc="upper right", fontsize=8.5)


__all__ = ["draw"]
