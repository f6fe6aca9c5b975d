"""The figures of `boltzmann`: likelihoods against work, and what the machines draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from mlmcgrad.experiments.boltzmann.settings import LABELS
from mlmcgrad.experiments.folder import Findings
from mlmcgrad.experiments.plots import COLOURS, CYCLE, panels

_NAMES = {"bars": "bars and stripes", "digits": "digits"}
_LOOKS: dict[str, tuple[str, str]] = {
    "cd-1": ("#bbbbbb", ":"),
    "cd-7": (COLOURS["short"], "-"),
    "pcd-1": (CYCLE[4], ":"),
    "pcd-7": (CYCLE[4], "-"),
    "ucd": (CYCLE[3], "-"),
    "mlmc": (COLOURS["mlmc"], "-"),
    "mlmc-sum": (CYCLE[2], "-"),
    "mlmc-persistent": (CYCLE[5], "-"),
    "average": (COLOURS["average"], "--"),
    "exact": (COLOURS["theory"], "--"),
}
_SHOWN = 0.35  # of the way from the lowest final value to the ceiling is left below it


def draw(folder: Path, findings: Findings) -> Path:
    """A row of panels for each data set: log-likelihood against Gibbs steps and seconds."""
    summary = findings.summary["data"]
    with panels(2 * len(summary), folder / "boltzmann", rows=len(summary)) as (_, axes):
        for row, (name, found) in enumerate(summary.items()):
            steps, seconds = axes[2 * row : 2 * row + 2]
            for method in LABELS:
                runs = _runs(findings.rows, name, method)
                _curve(seconds, runs, "seconds", method, found["unit"])
                if method == "exact":
                    end = found["methods"][method]["last"]["mean"]
                    colour, style = _LOOKS[method]
                    steps.axhline(end, color=colour, ls=style, lw=1.2, label=LABELS[method])
                else:
                    _curve(steps, runs, "steps", method, found["unit"])
            for panel, label in ((steps, "Gibbs steps of a chain"), (seconds, "processor seconds")):
                panel.axhline(found["ceiling"], color=COLOURS["theory"], lw=0.8)
                panel.set(xlabel=label, xscale="log", ylim=_limits(found))
            per = "of all rows" if found["unit"] > 1 else "of a row"
            steps.set_ylabel(f"exact log-likelihood {per}")
            steps.set_title(f"{_NAMES[name]}: mean over seeds, and range")
            seconds.set_title("thin line: the most that any model can have")
            if row == 0:  # beside the panels, which have no free corner
                seconds.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1.02, 1.0))
    return folder / "boltzmann.png"


def draw_samples(folder: Path, findings: Findings) -> Path:
    """Exact draws of the machine of the first seed, a line for each method."""
    summary = findings.summary["data"]
    with panels(len(summary), folder / "samples") as (figure, axes):
        figure.set_size_inches(7.0 * len(summary), 4.0)
        for panel, (name, found) in zip(axes, summary.items(), strict=True):
            lines = [_line(found["samples"][method], found["side"]) for method in LABELS]
            panel.imshow(np.vstack(lines), cmap="Greys", vmin=0.0, vmax=1.0, aspect="equal")
            height = found["side"] + 1
            panel.set_yticks(
                [height * i + height / 2.0 for i in range(len(LABELS))], list(LABELS.values())
            )
            panel.set(title=f"{_NAMES[name]}: draws of the trained machines", xticks=[])
            panel.grid(visible=False)
    return folder / "samples.png"


def _runs(rows: list[dict[str, Any]], data: str, method: str) -> list[list[dict[str, Any]]]:
    """The curves of a method, one for each seed."""
    mine = [row for row in rows if (row["data"], row["method"]) == (data, method)]
    seeds = dict.fromkeys(row["seed"] for row in mine)
    return [[row for row in mine if row["seed"] == seed] for seed in seeds]


def _curve(axes: Axes, runs: list[list[dict[str, Any]]], work: str, method: str, unit: int) -> None:
    """Mean over seeds at each iteration, at the mean of the work until then."""
    colour, style = _LOOKS[method]
    x = np.mean([[row[work] for row in run] for run in runs], axis=0)
    y = unit * np.array([[row["last"] for row in run] for run in runs])
    axes.plot(x, y.mean(0), ls=style, color=colour, lw=1.6, label=LABELS[method])
    axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, lw=0)


def _limits(found: dict[str, Any]) -> tuple[float, float]:
    lowest = min(numbers["last"]["mean"] for numbers in found["methods"].values())
    room = found["ceiling"] - lowest
    return lowest - _SHOWN * room, found["ceiling"] + 0.05 * room


def _line(samples: list[list[int]], side: int) -> Any:
    """Pictures side by side with white lines between them."""
    tiles = [np.pad(np.array(one).reshape(side, side), ((1, 0), (1, 0))) for one in samples]
    return np.hstack(tiles)
