"""The figure of a fit: the paths of its estimates, and its random effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mlmcgrad.mixed.formula import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mlmcgrad.mixed.result import Factor, Fit

_MOST_PATHS, _MOST_GROUPS = 8, 60
_LONGEST = 40  # characters of a name
_BLUE, _GREY = "#1f5fa8", "#888888"


def plot(fit: Fit) -> Figure:
    """Plot the paths of the estimates, and below the random effects of the first factor."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plot needs matplotlib; pip install 'mlmcgrad[paper]'", name=error.name
        ) from error
    names = fit.theta_names[:_MOST_PATHS]
    paths = len(names) if fit.path else 0
    columns = min(4, max(1, paths))
    rows = -(-paths // columns)
    figure = Figure(figsize=(10.0, 2.0 * rows + 3.6), layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[1.0] * rows + [1.8])
    for i in range(paths):
        _path(figure.add_subplot(grid[i // columns, i % columns]), fit, i, names[i])
    _caterpillar(figure.add_subplot(grid[rows, :]), fit.factors[0])
    return figure


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
    axes.set_title(_short(name), fontsize=9, parse_math=False)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("iteration", fontsize=8)


def _caterpillar(axes: Axes, factor: Factor) -> None:
    """Plot the ordered random effects of the groups with 95 % intervals."""
    mean, sd = factor.mean[:, 0].numpy(), factor.sd[:, 0].numpy()
    order = np.argsort(mean)
    if len(order) > _MOST_GROUPS:
        order = order[np.linspace(0, len(order) - 1, _MOST_GROUPS).round().astype(int)]
    place = np.arange(len(order))
    axes.errorbar(
        place, mean[order], 1.96 * sd[order], fmt="o", ms=3, lw=0.9, color=_BLUE, ecolor=_GREY
    )
    axes.axhline(0.0, color=_GREY, lw=0.8)
    axes.set_ylabel(_short(factor.terms[0]), fontsize=9, parse_math=False)
    some = "" if len(order) == len(mean) else f" ({len(order)} of {len(mean)}, evenly spaced)"
    title = f"random effects of {_short(factor.name)}{some}, with 95 % intervals"
    axes.set_title(title, fontsize=9, parse_math=False)
    if len(order) <= 30:
        labels = [_short(factor.groups[i]) for i in order]
        axes.set_xticks(place, labels, rotation=90, fontsize=7, parse_math=False)
    else:
        axes.set_xticks([])


def _short(name: str) -> str:
    """Return a name as it fits into a figure."""
    text = printable(name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
