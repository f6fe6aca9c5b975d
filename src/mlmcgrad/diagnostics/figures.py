"""Figures of plans and comparisons: levels of a pilot, and errors against budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from mlmcgrad.diagnostics.choice import describe
from mlmcgrad.estimators import Average, Estimator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mlmcgrad.diagnostics.choice import Choice
    from mlmcgrad.diagnostics.comparison import Comparison
    from mlmcgrad.diagnostics.predicted import Predicted

# Told apart with any colour vision (Okabe and Ito), and by their dashes when printed in grey.
_CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
_KINDS = {"Average": "#0072B2", "MLMC": "#D55E00", "MLMCSum": "#009E73"}
_SHORT, _GREY = "#999999", "#777777"
_POINTS = 200
_FURTHER = 4  # levels beyond the pilot that are drawn
_DECADES = (3.0, 2.0)  # before and after the budget of a plan
_KNOWN = 0.25  # relative error of a squared error that counts as known


def plot_choice(choice: Choice) -> Figure:
    """Left the levels of the pilot and how they go on, right the error against the budget."""
    figure, (left, right) = _figure(2)
    _levels(left, choice)
    _budgets(right, choice)
    return figure


def plot_comparison(comparison: Comparison) -> Figure:
    """The mean squared error of each contender, with its 95 % interval; dots are crossovers."""
    figure, (axes,) = _figure(1)
    budgets = np.geomspace(comparison.budgets[0], comparison.budgets[-1], _POINTS)
    for i, row in enumerate(comparison.rows):
        colour, able = _CYCLE[i % len(_CYCLE)], budgets[budgets >= row.cost]
        errors = [row.error(budget) for budget in able]
        dash = _DASHES[i % len(_DASHES)]
        label = f"{row.name}: {row.method}"
        axes.plot(able, [e.value for e in errors], color=colour, ls=dash, lw=2.0, label=label)
        low, high = [e.low for e in errors], [e.high for e in errors]
        axes.fill_between(able, low, high, color=colour, alpha=0.15, lw=0)
        if row.bias2.low > 0.0:  # else there may be no floor at all
            axes.axhline(row.bias2.value, color=colour, lw=0.8, ls=":")
    for crossing in comparison.crossovers:
        budget = crossing.budget.value
        if budgets[0] <= budget <= budgets[-1]:
            error = comparison[crossing.after].error(budget).value
            axes.plot([budget], [error], "o", color="black", ms=5)
    lines = [[row.error(b).value for b in budgets if b >= row.cost] for row in comparison.rows]
    _limits(axes, (v for line in lines for v in line))
    axes.set_xlim(budgets[0], budgets[-1])
    axes.set(xlabel="budget, in evaluations", ylabel="mean squared error of the average")
    axes.set_title("Who is best at which budget (dotted: bias² alone)")
    _finish(axes)
    return figure


def _levels(axes: Axes, choice: Choice) -> None:
    """Means and standard deviations of the differences of levels, measured and continued."""
    decay, pilot = choice.decay, choice.decay.pilot
    every = range(1, pilot.highest + _FURTHER + 1)
    lengths = [2**level for level in every]
    spread = [math.sqrt(max(0.0, float(decay.covariance(k)[k, k]))) for k in every]
    drift = [math.sqrt(max(0.0, decay.bias({k: 1.0, k - 1: -1.0}).value)) for k in every]
    axes.plot(lengths, spread, color=_CYCLE[0], lw=1.2, ls="--")
    axes.plot(lengths, drift, color=_CYCLE[1], lw=1.2, ls="--")
    seen = range(1, pilot.highest + 1)
    deviation, norms = [], []
    for level in seen:
        x, variance = pilot.difference(level), float(pilot.covariance(level)[level, level])
        deviation.append(math.sqrt(variance))
        norms.append((float(x.mean(0).norm()), math.sqrt(variance / len(x))))
    there = [2**level for level in seen]
    axes.plot(there, deviation, "o", color=_CYCLE[0], ms=5, label="standard deviation")
    axes.plot(there, [m for m, _ in norms], "s", color=_CYCLE[1], ms=5, label="norm of the mean")
    axes.plot(there, [n for _, n in norms], color=_GREY, lw=1.0, label="noise of that mean")
    ends = (2 ** (pilot.highest + 0.5), 2 ** (every[-1] + 0.5))
    axes.axvspan(*ends, color=_GREY, alpha=0.12, lw=0)
    _limits(axes, [*spread, *drift, *deviation, *(value for pair in norms for value in pair)])
    axes.set(xlabel="length p", ylabel="of H⁽ᵖ⁾ − H⁽ᵖᐟ²⁾")
    axes.set_title("Differences of levels (dashed: fitted, grey: beyond the pilot)")
    axes.set_xscale("log", base=2)
    axes.set_xlim(2**0.5, ends[1])
    _finish(axes)


def _budgets(axes: Axes, choice: Choice) -> None:
    """Predicted root mean squared errors; the chosen estimator is the thick line."""
    before, after = _DECADES
    first, last = choice.budget / 10.0**before, choice.budget * 10.0**after
    budgets = np.geomspace(first, last, _POINTS)
    shown, drawn = choice.shown(), []
    for i, each in enumerate(shown):
        able = budgets[budgets >= each.cost]
        best = each.estimator == choice.estimator
        values = [math.sqrt(each.error(budget)) for budget in able]
        drawn += values
        axes.plot(
            able,
            values,
            color=_colour(each.estimator),
            ls=_DASHES[i % len(_DASHES)],
            lw=3.0 if best else 1.5,
            label=describe(each.estimator),
            zorder=3 if best else 2,
        )
        if best:
            risk = [math.sqrt(each.risk(budget)) for budget in able]
            axes.fill_between(able, values, risk, color=_colour(each.estimator), alpha=0.15, lw=0)
    _mark(axes, choice.budget, "budget", "-")
    if first < choice.crossover < last:
        _mark(axes, choice.crossover, "crossover", ":")
    known = _known_until(choice.best)
    if known < last:
        span = (max(known, first), last)
        axes.axvspan(*span, color=_GREY, alpha=0.12, lw=0, label="bias not known well enough")
    axes.set_xlim(first, last)
    _limits(axes, drawn)
    axes.set(xlabel="budget, in evaluations", ylabel="root mean squared error, predicted")
    axes.set_title(f"At least {choice.simulations} simulations", pad=16)
    _finish(axes)


def _mark(axes: Axes, budget: float, text: str, dash: str) -> None:
    axes.axvline(budget, color="black", lw=1.0, ls=dash)
    place: tuple[str, str] = ("data", "axes fraction")
    axes.annotate(
        text,
        (budget, 1.0),
        xycoords=place,
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=9,
    )


def _known_until(best: Predicted) -> float:
    """The budget up to which the standard error of bias² is a small part of the squared error."""
    more = 2.0 * best.bias.se / _KNOWN - best.bias.value
    return best.work_variance / more if more > 0.0 else math.inf


def _colour(estimator: Estimator) -> str:
    if isinstance(estimator, Average) and estimator in (Average(1), Average(8)):
        return _SHORT
    return _KINDS.get(type(estimator).__name__, _CYCLE[3])


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plot needs matplotlib; pip install 'mlmcgrad[cli]'", name=error.name
        ) from error
    figure = Figure(figsize=(6.0 * panels, 4.4), layout="constrained")
    found = [figure.add_subplot(1, panels, i + 1) for i in range(panels)]
    for axes in found:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def _limits(axes: Axes, values: Iterable[float]) -> None:
    """Lines decide what is seen: a band may reach down to zero."""
    positive = [value for value in values if 0.0 < value < math.inf]
    if positive:
        axes.set_ylim(min(positive) / 2.0, max(positive) * 2.0)


def _finish(axes: Axes) -> None:
    axes.title.set_fontsize(11)
    axes.legend(fontsize=8, framealpha=0.8, edgecolor="none")
