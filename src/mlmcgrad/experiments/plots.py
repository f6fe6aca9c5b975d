"""The look of all figures, and how they are saved."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files only: no window, no display needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from mlmcgrad.runs.atomic import write_atomically

# Told apart with any colour vision (Okabe and Ito); a method has the same colour in all figures.
COLOURS = {
    "short": "#999999",
    "average": "#0072B2",
    "mlmc": "#D55E00",
    "theory": "#000000",
    "iwae": "#999999",
    "br": "#0072B2",
    "mlmc-rb": "#009E73",
    "mlmc-is": "#CC79A7",
    "dreg": "#555555",
    "jsa": "#E69F00",
}
# A figure printed in grey can be read too.
MARKERS = {
    "iwae": "o",
    "br": "s",
    "mlmc": "^",
    "mlmc-rb": "D",
    "mlmc-is": "v",
    "dreg": "P",
    "jsa": "X",
}
# For everything else, in this order.
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

STYLE: Any = {
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.hashsalt": "mlmcgrad",  # the same figure is the same file
}


def log_axes(axes: Axes, which: str = "xy") -> None:
    """Logarithmic axes with labels at 1, 2 and 5 times powers of ten, as plain numbers."""
    for letter in which:
        axis = axes.xaxis if letter == "x" else axes.yaxis
        (axes.set_xscale if letter == "x" else axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


@contextmanager
def panels(
    count: int, path: Path, rows: int = 1, **layout: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of panels in rows, saved as .png and .svg; `layout` is passed to `plt.subplots`."""
    with plt.rc_context(STYLE):
        columns = -(-count // rows)
        size = (5.4 * columns, 4.2 * rows)
        figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **layout)
        try:
            yield figure, list(axes.flat)[:count]
            figure.tight_layout()
            save(figure, path)
        finally:
            plt.close(figure)


def save(figure: Figure, path: Path) -> None:
    """Save a figure as .png and .svg; the same figure is the same file."""
    with plt.rc_context(STYLE):
        _save(figure, path.with_suffix(".png"))
        _save(figure, path.with_suffix(".svg"), metadata={"Date": None})


def _save(figure: Figure, path: Path, **options: Any) -> None:
    """Draw first, then write: a full disk leaves no half picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], **options)
    write_atomically(path, buffer.getvalue())
