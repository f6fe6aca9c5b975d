"""The figure of `rates`: measured curves below, evaluated bounds above."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from mlmcgrad.experiments.folder import Findings
from mlmcgrad.experiments.plots import COLOURS, CYCLE, log_axes, panels

_COLOURS = {0.0: COLOURS["short"], 0.25: CYCLE[4], 0.5: COLOURS["average"], 1.0: COLOURS["mlmc"]}
_TITLES = {"sgd": "Stochastic gradient", "adagrad": "MLMC-Adagrad", "amsgrad": "MLMC-AMSGrad"}
_LAYOUT: dict[str, Any] = {"rows": 2, "height_ratios": (1, 2), "sharex": "col", "sharey": "row"}


def draw(folder: Path, findings: Findings | None = None) -> Path:
    """One column for each optimizer, one colour for each α."""
    findings = findings or Findings.read(folder)
    summary = findings.summary
    with panels(2 * len(_TITLES), folder / "rates", **_LAYOUT) as (figure, axes):
        figure.set_size_inches(5.0 * len(_TITLES), 6.6)
        bounds, measured = axes[: len(_TITLES)], axes[len(_TITLES) :]
        for top, bottom, name in zip(bounds, measured, _TITLES, strict=True):
            for run in (r for r in summary["runs"] if r["optimizer"] == name):
                alpha = run["alpha"]
                rows = [r for r in findings.rows if (r["optimizer"], r["alpha"]) == (name, alpha)]
                _draw_run(bottom, run, rows)
                N, bound = [r["N"] for r in rows], [r["bound"] for r in rows]
                top.plot(N, bound, ":", color=_COLOURS[alpha], lw=2.2)
            top.axhline(summary["constants"]["G"] ** 2, color=COLOURS["theory"], lw=0.8)
            top.set(title=_TITLES[name], yscale="log")
            top.yaxis.set_minor_formatter(NullFormatter())
            bottom.set_xlabel("iterations N")
            log_axes(bottom)
            if N[-1] > 100 * N[0]:  # powers of ten are enough, and there is no room for more
                bottom.xaxis.set_major_locator(LogLocator())
        bounds[0].set_ylabel("bound of E‖∇V(θ_R)‖²")
        measured[0].set_ylabel("measured E‖∇V(θ_R)‖² (bands: 95 % for the mean)")
        _add_legends(bounds[0], measured[0])
    return folder / "rates.png"


def _draw_run(axes: Axes, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    colour = _COLOURS[run["alpha"]]
    N, mean = [r["N"] for r in rows], [r["measured"] for r in rows]
    low = [r["measured"] - 1.96 * r["standard_error"] for r in rows]
    high = [r["measured"] + 1.96 * r["standard_error"] for r in rows]
    axes.plot(N, mean, color=colour, label=f"α = {run['alpha']:g}")
    axes.fill_between(N, low, high, color=colour, alpha=0.25, lw=0)
    if run["alpha"] > 0.0:
        fitted = [r for r in rows if r["N"] >= run["fitted_from"]]
        N = [r["N"] for r in fitted]
        rate = [n ** run["predicted_exponent"] * math.log(n) ** run["log_power"] for n in N]
        scale = fitted[0]["measured"] / rate[0]
        axes.plot(N, [scale * r for r in rate], "--", color=colour, lw=1.4)
    else:
        axes.axhline(run["level"], ls="-.", color=colour, lw=1.4)
        axes.plot(N, [r["recent"] for r in rows], color=colour, lw=1.0)


def _add_legends(bound: Axes, measured: Axes) -> None:
    black, grey = COLOURS["theory"], COLOURS["short"]
    handles, labels = measured.get_legend_handles_labels()
    handles += [
        Line2D([], [], color=black, ls="--", lw=1.4),
        Line2D([], [], color=grey, ls="-.", lw=1.4),
        Line2D([], [], color=grey, lw=1.0),
    ]
    labels += ["predicted rate", "α = 0: level of its bias", "α = 0: latest iterates only"]
    measured.legend(handles, labels, loc="lower left", fontsize=8.5)
    handles = [Line2D([], [], color=black, ls=":", lw=2.2), Line2D([], [], color=black, lw=0.8)]
    bound.legend(handles, ["evaluated bound", "G², without a theorem"], fontsize=8.5)
