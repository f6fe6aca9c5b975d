"""The look of all figures and tables, and how figures are saved."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # files only: no window, no display needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from rich.console import Console
from rich.table import Table

from mlmcgrad._files import write_atomically
from mlmcgrad.paper.runs.process import printable

# Distinguishable with any colour vision (Okabe and Ito); a method has the same colour everywhere.
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
# For figures printed in grey.
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
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

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
    "svg.hashsalt": "mlmcgrad",  # equal figures give identical files
    "text.parse_math": False,  # $ in a text is a dollar
}


def log_axes(axes: Axes, which: str = "xy") -> None:
    """Make axes logarithmic once their curves are drawn, with as many plain numbers as fit."""
    for letter in which:
        axis = axes.xaxis if letter == "x" else axes.yaxis
        (axes.set_xscale if letter == "x" else axes.set_yscale)("log")
        low, high = axis.get_view_interval()
        decades = np.log10(high / low)
        subs: tuple[float, ...] = (1.0,) if decades > 3.0 else (1.0, 2.0, 5.0)
        if decades < 0.7:
            subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter(FuncFormatter(_tick))
        axis.set_minor_locator(NullLocator())  # they cost a third of time and file size


def _tick(value: float, _: int | None = None) -> str:
    if 1e-3 <= value < 1e6:
        return f"{value:g}"
    digits, exponent = f"{value:.0e}".split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if digits == "1" else f"{digits}·{power}"


@contextmanager
def panels(
    count: int, path: Path, rows: int = 1, **layout: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Make a figure of panels, saved as .png and .svg; `layout` is passed to `plt.subplots`."""
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


def save(figure: Figure, path: Path, *, formulas: bool = False) -> None:
    """Save a figure as .png and .svg; equal figures give identical files.

    Args:
        figure: the figure.
        path: of the files, with any suffix.
        formulas: draw $…$ as formulas, as matplotlib's own labels of log axes need it.
    """
    with plt.rc_context(STYLE | {"text.parse_math": formulas}):
        _save(figure, path.with_suffix(".png"))
        _save(figure, path.with_suffix(".svg"), metadata={"Date": None})


def _save(figure: Figure, path: Path, **options: Any) -> None:
    # Draw first, then write: a full disk leaves no half picture.
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], **options)
    write_atomically(path, buffer.getvalue())


def table(title: str, *columns: str) -> Table:
    """Return an empty table: the first column aligned left, the numbers in the others right."""
    made = Table(title=title)
    for column in columns:
        made.add_column(column, justify="right" if made.columns else "left", no_wrap=True)
    return made


def print_path(path: Path, console: Console, what: str = "figure") -> None:
    """Print where a file is, as the last line of a command."""
    print_text(f"{what}: {path}", console, style="bold")


def print_text(text: str, console: Console, style: str | None = None) -> None:
    """Print a text as it is: brackets are no markup, control characters are shown as codes."""
    plain: Any = {"markup": False, "emoji": False, "highlight": False}
    console.print(printable(text), style=style, soft_wrap=True, **plain)
