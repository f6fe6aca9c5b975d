"""Figures of plans and comparisons: levels of a pilot, and errors against budgets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mlmcgrad.diagnostics._plan import describe
from mlmcgrad.estimators import Average

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

    from mlmcgrad.diagnostics._compare import Comparison
    from mlmcgrad.diagnostics._plan import Plan

# Distinguishable with any colour vision (Okabe and Ito), and by their dashes in grey.
_CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
_KINDS = {"Average": "#0072B2", "MLMC": "#D55E00", "MLMCSum": "#009E73"}
_SHORT, _GREY = "#999999", "#777777"
_POINTS = 200
_FURTHER = 4  # levels beyond the pilot that are drawn
_BEFORE, _AFTER = 1e3, 1e2  # range of budgets that are drawn, relative to that of the plan
_KNOWN = 0.25  # relative error of a squared error that counts as known


def plot_plan(plan: Plan) -> Figure:
    """Plot the levels of the pilot and their extrapolation, and the error against the budget."""
    figure, (left, right) = _figure(2)
    _levels(left, plan)
    _budgets(right, plan)
    return figure


def plot_comparison(comparison: Comparison) -> Figure:
    """Plot the mean squared error of each contender with 95 % intervals; dots are crossovers."""
    figure, (axes,) = _figure(1)
    budgets = np.geomspace(comparison.budgets[0], comparison.budgets[-1], _POINTS)
    values = []
    for i, row in enumerate(comparison.rows):
        able = budgets[budgets >= row.cost]
        errors = [row.error(budget) for budget in able]
        means = [e.value for e in errors]
        values += means
        colour, dash = _CYCLE[i % len(_CYCLE)], _DASHES[i % len(_DASHES)]
        axes.plot(able, means, color=colour, ls=dash, lw=2.0, label=f"{i}")
        _band(axes, able, [e.low for e in errors], [e.high for e in errors], colour)
        if row.bias2.low > 0.0:  # otherwise the bias may be 0
            axes.axhline(row.bias2.value, color=colour, lw=0.8, ls=":")
    for crossing in comparison.crossovers:
        budget = crossing.budget.value
        if budgets[0] <= budget <= budgets[-1]:
            error = comparison[crossing.after].error(budget).value
            axes.plot([budget], [error], "o", color="black", ms=5)
    axes.set(xlabel="budget, in evaluations", ylabel="mean squared error of the average")
    axes.set_title("Mean squared error against budget (dotted: bias² only)")
    legend = _finish(axes, (budgets[0], budgets[-1]), values)
    # Names are data: as a label, "_a" would be hidden and "$a$" drawn as a formula.
    for text, row in zip(legend.get_texts(), comparison.rows, strict=True):
        text.set_text(f"{row.name}: {row.method}")
        text.set_parse_math(False)
    return figure


def _levels(axes: Axes, plan: Plan) -> None:
    """Plot means and standard deviations of the differences of levels, measured and fitted."""
    decay, pilot = plan.decay, plan.decay.pilot
    every, measured = range(1, pilot.highest + _FURTHER + 1), range(1, pilot.highest + 1)
    spread = [math.sqrt(max(0.0, float(decay.covariance(k)[k, k]))) for k in every]
    drift = [math.sqrt(max(0.0, decay.bias({k: 1.0, k - 1: -1.0}).value)) for k in every]
    deviation = [math.sqrt(float(pilot.covariance(k)[k, k])) for k in measured]
    means = [pilot.mean(k) for k in measured]
    norm, noise = [float(mean.norm()) for mean, _ in means], [math.sqrt(v) for _, v in means]
    lengths = 2.0 ** np.array(every)
    there = lengths[: len(measured)]
    axes.plot(lengths, spread, color=_CYCLE[0], lw=1.2, ls="--")
    axes.plot(lengths, drift, color=_CYCLE[1], lw=1.2, ls="--")
    axes.plot(there, deviation, "o", color=_CYCLE[0], ms=5, label="standard deviation")
    axes.plot(there, norm, "s", color=_CYCLE[1], ms=5, label="norm of the mean")
    axes.plot(there, noise, color=_GREY, lw=1.0, label="noise of that mean")
    last = 2 ** (every[-1] + 0.5)
    axes.axvspan(2 ** (pilot.highest + 0.5), last, color=_GREY, alpha=0.12, lw=0)
    axes.set(xlabel="length p", ylabel="of H⁽ᵖ⁾ − H⁽ᵖᐟ²⁾")
    axes.set_title("Differences of levels (dashed: fitted, grey: beyond the pilot)")
    axes.set_xscale("log", base=2)
    _finish(axes, (2**0.5, last), [*spread, *drift, *deviation, *norm, *noise])


def _budgets(axes: Axes, plan: Plan) -> None:
    """Plot predicted root mean squared errors; the chosen estimator is the thick line."""
    first, last = plan.budget / _BEFORE, plan.budget * _AFTER
    budgets, drawn = np.geomspace(first, last, _POINTS), []
    for i, each in enumerate(plan.shown()):
        able = budgets[budgets >= each.cost]
        values = [math.sqrt(each.error(budget)) for budget in able]
        drawn += values
        best, kind = each.estimator == plan.estimator, type(each.estimator).__name__
        colour = _SHORT if each.estimator in (Average(1), Average(8)) else _KINDS[kind]
        dash, width, order = _DASHES[i % len(_DASHES)], 3.0 if best else 1.5, 3 if best else 2
        text = describe(each.estimator)
        axes.plot(able, values, color=colour, ls=dash, lw=width, zorder=order, label=text)
        if best:
            risk = [math.sqrt(each.bias.cautious + each.work_variance / b) for b in able]
            _band(axes, able, values, risk, colour)
    _mark(axes, plan.budget, "budget", "-")
    if first < plan.crossover < last:
        _mark(axes, plan.crossover, "crossover", ":")
    # Up to this budget the standard error of bias² is small beside the error.
    more = 2.0 * plan.best.bias.se / _KNOWN - plan.best.bias.value
    known = plan.best.work_variance / more if more > 0.0 else math.inf
    if known < last:
        span = (max(known, first), last)
        axes.axvspan(*span, color=_GREY, alpha=0.12, lw=0, label="bias too uncertain")
    axes.set(xlabel="budget, in evaluations", ylabel="root mean squared error, predicted")
    axes.set_title(f"At least {plan.simulations} simulations", pad=16)
    _finish(axes, (first, last), drawn)


def _band(axes: Axes, x: Any, low: list[float], high: list[float], colour: str) -> None:
    axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)


def _mark(axes: Axes, budget: float, text: str, dash: str) -> None:
    axes.axvline(budget, color="black", lw=1.0, ls=dash)
    above = axes.get_xaxis_transform()
    axes.text(budget, 1.01, text, transform=above, ha="center", va="bottom", fontsize=9)


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plot needs matplotlib; pip install 'mlmcgrad[paper]'", name=error.name
        ) from error
    figure = Figure(figsize=(6.0 * panels, 4.4), layout="constrained")
    every = [figure.add_subplot(1, panels, i + 1) for i in range(panels)]
    for axes in every:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, every


def _finish(axes: Axes, ends: tuple[float, float], values: list[float]) -> Legend:
    """Set the limits by the lines, because bands may reach down to 0; return the legend."""
    axes.set_xlim(ends)
    positive = [value for value in values if 0.0 < value < math.inf]
    if positive:
        axes.set_ylim(min(positive) / 2.0, max(positive) * 2.0)
    axes.title.set_fontsize(11)
    return axes.legend(fontsize=8, framealpha=0.8, edgecolor="none")
