"""Boltzmann machines trained by contrastive divergence and by methods that remove its bias.

Stochastic gradient descent on −mean log p_θ(data), with step size 0.1. The data's part of the
gradient is exact; methods differ in how they estimate ∇log Z. With 16 hidden units the likelihood
is known exactly, so it can be compared against Gibbs steps and against processor seconds, for the
last iterate and for an average of the iterates

    θ̄_n = θ̄_{n−1} + (η + 1)/(n + η) (θ_n − θ̄_{n−1}),     η = 3,

which gives the last tenth of the iterates a third of the weight (Shamir, Zhang 2013).

Log-likelihoods are totals over the 32 rows of bars and stripes, as in the published benchmark, and
means over rows for digits. Runs with the same seed start at the same machine, so differences
between methods are taken seed by seed: `iterations` compares the ends of two curves, `steps` both
curves where the one with fewer Gibbs steps ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.console import Console

from mlmcgrad._files import write_atomically
from mlmcgrad.paper.experiments.folder import Findings, simulated
from mlmcgrad.paper.experiments.machines import CHAINS, LABELS, ceiling, pictures, train
from mlmcgrad.paper.experiments.plots import COLOURS, CYCLE, log_axes, panels, print_path, table
from mlmcgrad.paper.experiments.reproduce.claims import student_interval
from mlmcgrad.paper.experiments.settings import BoltzmannSettings, Pictures, Preset

_SLOW = ("mlmc-sum", "mlmc-persistent", "exact")  # and not part of the published benchmark
_SLOWEST = "average"  # has one seed
_REFERENCES = (_SLOWEST, "exact")  # not part of the comparison
_ITERATES = ("last", "averaged")


@dataclass(frozen=True)
class BoltzmannEffort:
    """How much a preset computes for one data set."""

    iterations: int
    seeds: int
    few: int  # seeds of the slow methods
    chains: int = CHAINS


EFFORT: dict[Preset, dict[Pictures, BoltzmannEffort]] = {
    "smoke": {"bars": BoltzmannEffort(12, 2, 1, 40), "digits": BoltzmannEffort(6, 2, 2, 40)},
    "quick": {"bars": BoltzmannEffort(1_500, 3, 3), "digits": BoltzmannEffort(200, 2, 2)},
    "full": {"bars": BoltzmannEffort(10_000, 10, 5), "digits": BoltzmannEffort(2_000, 5, 5)},
}


def run(settings: BoltzmannSettings, console: Console) -> dict[str, Any]:
    """Train in the run folder, compare, draw and print; returns the summary."""
    arguments = {}
    for data in settings.data:
        effort = EFFORT[settings.preset][data]
        seeds = {_SLOWEST: 1, **dict.fromkeys(_SLOW, effort.few)}
        for seed in range(effort.seeds):
            for method in LABELS:
                if seed < seeds.get(method, effort.seeds):
                    arguments[f"{data} {method} {seed}"] = {
                        "data": data,
                        "method": method,
                        "iterations": effort.iterations,
                        "chains": effort.chains,
                        "seed": settings.seed + seed,
                    }
    with simulated(settings, train, arguments, summarise, console) as findings:
        write_atomically(settings.out / "table.md", markdown(findings.summary).encode())
        _show(findings.summary, console)
        _draw_samples(settings.out, findings)
        print_path(draw(settings.out, findings), console)
    return findings.summary


def summarise(parts: dict[str, Any]) -> Findings:
    """Return one row per point of a curve; the summary has one entry per data set."""
    rows = [
        {"data": part["data"], "method": part["method"], "seed": part["seed"], **point}
        for part in parts.values()
        for point in part["curve"]
    ]
    names = list(dict.fromkeys(part["data"] for part in parts.values()))
    return Findings(rows, {"data": {name: _summary(name, parts) for name in names}})


def _summary(name: Pictures, parts: dict[str, Any]) -> dict[str, Any]:
    data = pictures(name)
    unit = len(data) if name == "bars" else 1
    runs = {
        method: {
            part["seed"]: part
            for part in parts.values()
            if (part["data"], part["method"]) == (name, method)
        }
        for method in LABELS
    }
    return {
        "unit": unit,
        "ceiling": unit * ceiling(data),
        "iterations": next(iter(runs["mlmc"].values()))["curve"][-1]["iteration"],
        "side": round(data.shape[1] ** 0.5),
        "methods": {method: _method(of, unit) for method, of in runs.items()},
        "differences": {
            method: _differences(runs["mlmc"], of, unit)
            for method, of in runs.items()
            if method != "mlmc"
        },
        "samples": {method: next(iter(of.values()))["samples"] for method, of in runs.items()},
    }


def _method(runs: dict[int, Any], unit: int) -> dict[str, Any]:
    """Return final likelihoods with intervals, and the cost of an iteration."""
    ends = [part["curve"][-1] for part in runs.values()]
    numbers: dict[str, Any] = {"seeds": len(ends)}
    for name in ("steps", "seconds"):
        numbers[f"{name}_an_iteration"] = float(np.mean([e[name] / e["iteration"] for e in ends]))
    for iterate in _ITERATES:
        values = [unit * end[iterate] for end in ends]
        numbers[iterate] = {**_interval(values), "values": values}
    return numbers


def _differences(ours: dict[int, Any], others: dict[int, Any], unit: int) -> dict[str, Any]:
    """Return MLMC minus another method, seed by seed."""
    seeds = sorted(set(ours) & set(others))
    differences: dict[str, Any] = {}
    for iterate in _ITERATES:
        pairs = [(ours[seed]["curve"], others[seed]["curve"]) for seed in seeds]
        ends = [unit * (a[-1][iterate] - b[-1][iterate]) for a, b in pairs]
        differences[iterate] = {"iterations": _interval(ends)}
        if all(b[-1]["steps"] for _, b in pairs):
            equal = [unit * _at_equal_steps(a, b, iterate) for a, b in pairs]
            differences[iterate]["steps"] = _interval(equal)
    return differences


def _at_equal_steps(a: list[dict[str, Any]], b: list[dict[str, Any]], iterate: str) -> float:
    where = min(a[-1]["steps"], b[-1]["steps"])
    values = [
        np.interp(where, [p["steps"] for p in curve], [p[iterate] for p in curve])
        for curve in (a, b)
    ]
    return float(values[0] - values[1])


def _interval(values: list[float]) -> dict[str, Any]:
    mean, low, high = student_interval(values)
    return {"mean": mean, "interval": [low, high]}


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


def draw(folder: Path, findings: Findings) -> Path:
    """Draw log-likelihood against Gibbs steps and seconds, one row of panels per data set."""
    summary = findings.summary["data"]
    with panels(2 * len(summary), folder / "boltzmann", rows=len(summary)) as (_, axes):
        for row, (name, numbers) in enumerate(summary.items()):
            steps, seconds = axes[2 * row : 2 * row + 2]
            top = numbers["ceiling"]
            room = top - min(each["last"]["mean"] for each in numbers["methods"].values())
            for method in LABELS:
                mine = [r for r in findings.rows if (r["data"], r["method"]) == (name, method)]
                seeds = dict.fromkeys(row["seed"] for row in mine)
                runs = [[row for row in mine if row["seed"] == seed] for seed in seeds]
                _curve(seconds, runs, "seconds", method, numbers["unit"])
                if method == "exact":
                    end = numbers["methods"][method]["last"]["mean"]
                    colour, style = _LOOKS[method]
                    steps.axhline(end, color=colour, ls=style, lw=1.2, label=LABELS[method])
                else:
                    _curve(steps, runs, "steps", method, numbers["unit"])
            for panel, label in ((steps, "Gibbs steps per chain"), (seconds, "processor seconds")):
                panel.axhline(top, color=COLOURS["theory"], lw=0.8)
                panel.set(xlabel=label, ylim=(top - 1.35 * room, top + 0.05 * room))
                log_axes(panel, "x")
            per = "of all rows" if numbers["unit"] > 1 else "of a row"
            steps.set_ylabel(f"exact log-likelihood {per}")
            steps.set_title(f"{_NAMES[name]}: mean over seeds, and range")
            seconds.set_title("thin line: upper bound of any model")
            if row == 0:  # beside the panels, which have no free corner
                seconds.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1.02, 1.0))
    return folder / "boltzmann.png"


def _draw_samples(folder: Path, findings: Findings) -> None:
    """Show exact draws of the machine of the first seed, one line per method."""
    summary = findings.summary["data"]
    with panels(len(summary), folder / "samples") as (figure, axes):
        figure.set_size_inches(7.0 * len(summary), 4.0)
        for panel, (name, numbers) in zip(axes, summary.items(), strict=True):
            side, height = numbers["side"], numbers["side"] + 1
            samples = np.array([numbers["samples"][method] for method in LABELS])
            tiles = samples.reshape(*samples.shape[:2], side, side)
            tiles = np.pad(tiles, ((0, 0), (0, 0), (1, 0), (1, 0)))  # white lines between them
            picture = tiles.swapaxes(1, 2).reshape(len(LABELS) * height, -1)
            panel.imshow(picture, cmap="Greys", vmin=0.0, vmax=1.0, aspect="equal")
            panel.set_yticks(height * (np.arange(len(LABELS)) + 0.5), list(LABELS.values()))
            panel.set(title=f"{_NAMES[name]}: draws of the trained machines", xticks=[])
            panel.grid(visible=False)


def _curve(axes: Axes, runs: list[list[dict[str, Any]]], work: str, method: str, unit: int) -> None:
    """Draw the mean over seeds at each iteration, at the mean work so far."""
    colour, style = _LOOKS[method]
    x = np.mean([[row[work] for row in run] for run in runs], axis=0)
    y = unit * np.array([[row["last"] for row in run] for run in runs])
    axes.plot(x, y.mean(0), ls=style, color=colour, lw=1.6, label=LABELS[method])
    axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, lw=0)


_TITLES = {
    "bars": "Bars and stripes: log-likelihood of 32 rows",
    "digits": "Digits: log-likelihood of a row",
}
_COLUMNS = ("method", "steps", "last", "averaged", "MLMC − it", "equal steps")
_WIDE = (*_COLUMNS, "equal steps, averaged", "ms")
_NOTE = (
    "Mean over seeds ± half of its 95 % interval. steps: Gibbs steps per chain and iteration, for "
    "UCD those of both chains. averaged: of the averaged iterate. MLMC − it: paired difference of "
    "the last iterates after the same number of iterations; equal steps: after the same number of "
    "Gibbs steps. The average of 128 steps and the exact gradient are references: they show what "
    "more work, or no error at all, would give."
)
_MORE = (
    "equal steps, averaged: the same for the averaged iterates. ms: processor time per iteration."
)


def _show(summary: dict[str, Any], console: Console) -> None:
    """Print one table per data set, within 80 columns."""
    last = [label for method, label in LABELS.items() if method not in _REFERENCES][-1]
    for name, numbers in summary["data"].items():
        shown = table(_title(name, numbers), *_COLUMNS)
        for cells in _rows(numbers):
            shown.add_row(*cells[: len(_COLUMNS)], end_section=cells[0] == last)
        console.print(shown)
    console.print(_NOTE)


def markdown(summary: dict[str, Any]) -> str:
    """Return the same tables in Markdown, with two more columns."""
    lines = []
    for name, numbers in summary["data"].items():
        lines += [f"**{_title(name, numbers)}**", "", f"| {' | '.join(_WIDE)} |"]
        lines.append(f"|---|{'---:|' * (len(_WIDE) - 1)}")
        lines += [*(f"| {' | '.join(cells)} |" for cells in _rows(numbers)), ""]
    return "\n".join([*lines, f"{_NOTE} {_MORE}", ""])


def _title(name: str, numbers: dict[str, Any]) -> str:
    return f"{_TITLES[name]}, {numbers['iterations']} iterations, at most {numbers['ceiling']:.1f}"


def _rows(numbers: dict[str, Any]) -> Iterator[list[str]]:
    for method, label in LABELS.items():
        own = numbers["methods"][method]
        differences = numbers["differences"].get(method, {})
        last, averaged = (differences.get(iterate, {}) for iterate in _ITERATES)
        digits = 1 if numbers["unit"] > 1 else 2
        yield [
            label,
            f"{own['steps_an_iteration']:.1f}" if method != "exact" else "–",
            _value(own["last"], digits),
            _value(own["averaged"], digits),
            _value(last.get("iterations"), digits),
            _value(last.get("steps"), digits),
            _value(averaged.get("steps"), digits),
            f"{1e3 * own['seconds_an_iteration']:.1f}",
        ]


def _value(number: dict[str, Any] | None, digits: int) -> str:
    """Format a mean and half of its interval."""
    if number is None:
        return "–"
    low, high = number["interval"]
    mean = f"{number['mean']:.{digits}f}"
    return mean if low is None else f"{mean}±{(high - low) / 2.0:.{digits}f}"
