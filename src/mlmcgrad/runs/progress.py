"""One look for every progress bar: a description, the bar, numbers, elapsed and remaining time."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def bars(console: Console | None, *numbers: str) -> Progress:
    """A live display on a terminal, nothing elsewhere; enter it and add a task for each bar.

    Args:
        console: where to show it; None shows nothing.
        numbers: format strings for the columns beside a bar, by default the percentage. They may
            use `task`; extra keywords of `add_task` and `update` are in `task.fields`.
    """
    columns = [TextColumn(text) for text in numbers or ("{task.percentage:3.0f}%",)]
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=console is None or not console.is_terminal,
    )
