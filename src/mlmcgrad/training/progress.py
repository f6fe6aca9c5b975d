"""The progress of a run on a terminal: epoch, speed, bound, test NLL and what was spent."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mlmcgrad.training.trainer import Trainer


class Bar:
    """A live bar on a terminal; elsewhere one line for each test; without a console, nothing.

    Args:
        console: where to show it.
        trainer: the run.
        total: iterations.
    """

    def __init__(self, console: Console | None, trainer: Trainer, total: int) -> None:
        self.console, self.trainer = console, trainer
        columns = (
            TextColumn("epoch {task.fields[epoch]:.1f}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[speed]:.1f} it/s"),
            TextColumn("bound {task.fields[bound]}"),
            TextColumn("test NLL {task.fields[nll]}"),
            TextColumn("{task.fields[spent]} evaluations"),
            TimeRemainingColumn(),
        )
        hidden = console is None or not console.is_terminal
        self._progress = Progress(*columns, console=console, transient=True, disable=hidden)
        self._task = self._progress.add_task(
            "",
            total=total,
            completed=trainer.iteration,
            epoch=0.0,
            speed=0.0,
            bound="–",
            nll="–",
            spent="0",
        )
        self._first = trainer.iteration

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def update(self, seconds: float) -> None:
        """Show the present state; seconds are those since this process began to train."""
        trainer, window, test = self.trainer, self.trainer.window, self.trainer.test
        if window.count:
            bound = f"{window.sums['bound'] / window.count:.2f}"
            self._progress.update(self._task, bound=bound)
        self._progress.update(
            self._task,
            completed=trainer.iteration,
            epoch=trainer.epoch,
            speed=(trainer.iteration - self._first) / max(seconds, 1e-9),
            nll="–" if test is None else f"{test['nll']:.2f}",
            spent=_short(trainer.spent["evaluations"]),
        )

    def tell(self) -> None:
        """Say what a test found, where no live bar shows it."""
        test = self.trainer.test
        if self.console is not None and not self.console.is_terminal and test is not None:
            self.console.print(
                f"iteration {self.trainer.iteration}, epoch {self.trainer.epoch:.1f}: test NLL "
                f"{test['nll']:.2f} ± {test['nll_se']:.2f}, "
                f"{_short(self.trainer.spent['evaluations'])} evaluations",
                highlight=False,
            )


def _short(count: float) -> str:
    for unit in ("", "k", "M", "G"):
        if count < 1000.0:
            return f"{count:.0f}{unit}" if not unit else f"{count:.1f}{unit}"
        count /= 1000.0
    return f"{count:.1f}T"


__all__ = ["Bar"]
