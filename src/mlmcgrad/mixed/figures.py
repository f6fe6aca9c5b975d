"""The figures of a fit: the paths of its estimates, its random effects, and its residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from mlmcgrad.mixed.formula import printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mlmcgrad.mixed.result import Factor, Fit

_MOST_PATHS, _MOST_GROUPS = 8, 60
_LONGEST = 40  # characters of a name
_BINS, _SIMULATED = 10, 100
_BLUE, _GREY = "#1f5fa8", "#888888"


def plot(fit: Fit, what: str) -> Figure:
    """Return the figure that `Fit.plot` is asked for."""
    if what not in _FIGURES:
        raise ValueError(f"what must be one of {', '.join(map(repr, _FIGURES))}, got {what!r}")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plot needs matplotlib; pip install 'mlmcgrad[paper]'", name=error.name
        ) from error
    return _FIGURES[what](fit, Figure)


def _search(fit: Fit, new: type[Figure]) -> Figure:
    """Plot the paths of the estimates, and below the random effects of the first factor."""
    names = fit.theta_names[:_MOST_PATHS]
    paths = len(names) if fit.path else 0
    columns = min(4, max(1, paths))
    rows = -(-paths // columns)
    figure = new(figsize=(10.0, 2.0 * rows + 3.6), layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[1.0] * rows + [1.8])
    for i in range(paths):
        _path(figure.add_subplot(grid[i // columns, i % columns]), fit, i, names[i])
    _caterpillar(figure.add_subplot(grid[rows, :]), fit.factors[0], 0)
    return figure


def _caterpillars(fit: Fit, new: type[Figure]) -> Figure:
    """Plot the random effects of all factors."""
    shown = [(f, i) for f in fit.factors for i in range(len(f.terms))]
    figure = new(figsize=(10.0, 3.0 * len(shown)), layout="constrained")
    for k, (f, i) in enumerate(shown):
        _caterpillar(figure.add_subplot(len(shown), 1, k + 1), f, i)
    return figure


def _residuals(fit: Fit, new: type[Figure]) -> Figure:
    """Plot quantile residuals, random effects and group means alongside the model's expectation."""
    figure = new(figsize=(10.0, 8.0), layout="constrained")
    residuals = fit.residuals("quantile").to_numpy()
    _normal_plot(figure.add_subplot(2, 2, 1), residuals, "quantile residuals", "residual")
    _trend(figure.add_subplot(2, 2, 2), fit.predict(type="link", effects="none"), residuals)
    f = fit.factors[0]
    mean = f.mean[:, 0].numpy()
    spread = float(mean.std()) or 1.0
    title = f"random effects of {_short(f.name)}, {_short(f.terms[0])}"
    _normal_plot(figure.add_subplot(2, 2, 3), mean / spread, title, "posterior mean, standardised")
    _group_means(figure.add_subplot(2, 2, 4), fit)
    return figure


def _normal_plot(axes: Axes, values: NDArray[np.float64], title: str, label: str) -> None:
    """Plot sorted values over normal quantiles, with pointwise 95 % limits of normal samples."""
    n = len(values)
    k = np.arange(1, n + 1)
    x = ndtri((k - 0.5) / n)
    limits = [ndtri(betaincinv(k, n + 1 - k, p)) for p in (0.025, 0.975)]
    axes.fill_between(x, *limits, color=_BLUE, alpha=0.15, lw=0)
    axes.plot(x[[0, -1]], x[[0, -1]], color=_GREY, lw=0.8)
    axes.plot(x, np.sort(values), ".", ms=4, color=_BLUE)
    _label(axes, title, "normal quantile, with 95 % limits", label)


def _trend(axes: Axes, predictor: pd.Series[float], residuals: NDArray[np.float64]) -> None:
    """Plot residuals over the linear predictor, with means and 95 % intervals in bins."""
    x = predictor.to_numpy()
    axes.plot(x, residuals, ".", ms=3, color=_GREY, alpha=min(1.0, 500.0 / len(x)))
    edges = np.unique(np.quantile(x, np.linspace(0.0, 1.0, 1 + min(_BINS, max(2, len(x) // 20)))))
    place = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, len(edges) - 2))
    for i in np.unique(place):
        inside = place == i
        mean, error = residuals[inside].mean(), 1.96 / inside.sum() ** 0.5
        axes.errorbar(x[inside].mean(), mean, error, fmt="o", ms=4, color=_BLUE)
    axes.axhline(0.0, color=_GREY, lw=0.8)
    title = "quantile residuals, means with 95 % intervals"
    _label(axes, title, "linear predictor without random effects", "residual")


def _group_means(axes: Axes, fit: Fit) -> None:
    """Plot the sorted mean responses of the groups, and 95 % of those of simulated data."""
    assert fit.live is not None
    design, f = fit.live.design, fit.factors[0]
    index = design.effects[0].index.numpy()
    size = np.bincount(index, design.trials.numpy())

    def means(y: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.sort(np.bincount(index, y) / size)

    own = means(design.y.numpy())
    drawn = np.array([means(fit.simulate(seed=i).to_numpy()) for i in range(_SIMULATED)])
    x = (np.arange(len(own)) + 0.5) / len(own)
    axes.fill_between(x, *np.quantile(drawn, [0.025, 0.975], axis=0), color=_BLUE, alpha=0.15, lw=0)
    axes.plot(x, np.median(drawn, axis=0), color=_GREY, lw=0.8)
    axes.plot(x, own, ".", ms=4, color=_BLUE)
    title = f"mean of {_short(design.response)} in each {_short(f.name)}, sorted"
    _label(axes, title, "share of groups; band: 95 % of simulated data sets")


def _path(axes: Axes, fit: Fit, i: int, name: str) -> None:
    """Plot one estimate over the iterations, and its 95 % interval."""
    values = torch.stack([step.theta[i] for step in fit.path]).numpy()
    if i in fit.layout.diagonal:  # whose sign is arbitrary
        values = abs(values)
    numbers = np.array([step.iteration for step in fit.path])
    error = 1.96 * float(fit.parameter_covariance[i, i].clamp(min=0.0).sqrt())
    end = float(fit.theta[i])
    axes.axhspan(end - error, end + error, color=_BLUE, alpha=0.12, lw=0)
    axes.plot(numbers, values, color=_BLUE, lw=1.2)
    first = next((step.iteration for step in fit.path if step.averaging), None)
    if first is not None:
        axes.axvline(first, color=_GREY, lw=0.8, ls=":")
    axes.tick_params(labelsize=8)
    _label(axes, _short(name), "iteration")


def _caterpillar(axes: Axes, factor: Factor, i: int) -> None:
    """Plot the ordered random effects of the groups with 95 % intervals."""
    mean, sd = factor.mean[:, i].numpy(), factor.sd[:, i].numpy()
    order = np.argsort(mean)
    if len(order) > _MOST_GROUPS:
        order = order[np.linspace(0, len(order) - 1, _MOST_GROUPS).round().astype(int)]
    place = np.arange(len(order))
    axes.errorbar(
        place, mean[order], 1.96 * sd[order], fmt="o", ms=3, lw=0.9, color=_BLUE, ecolor=_GREY
    )
    axes.axhline(0.0, color=_GREY, lw=0.8)
    axes.set_ylabel(_short(factor.terms[i]), fontsize=9, parse_math=False)
    some = "" if len(order) == len(mean) else f" ({len(order)} of {len(mean)}, evenly spaced)"
    title = f"random effects of {_short(factor.name)}{some}, with 95 % intervals"
    axes.set_title(title, fontsize=9, parse_math=False)
    if len(order) <= 30:
        labels = [_short(factor.groups[i]) for i in order]
        axes.set_xticks(place, labels, rotation=90, fontsize=7, parse_math=False)
    else:
        axes.set_xticks([])


_FIGURES: dict[str, Callable[[Fit, type[Figure]], Figure]] = {
    "fit": _search,
    "ranef": _caterpillars,
    "residuals": _residuals,
}


def _label(axes: Axes, title: str, x: str, y: str = "") -> None:
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)


def _short(name: str) -> str:
    """Return a name as it fits into a figure."""
    text = printable(name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
