"""The progress of a run on a terminal: epoch, speed, bound, test NLL and decoder evaluations."""

from __future__ import annotations

from rich.console import Console

from mlmcgrad.runs.progress import bars
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
        self._progress = bars(
            console,
            "{task.completed:.0f}/{task.total:.0f}",
            "{task.fields[speed]:.1f} it/s",
            "bound {task.fields[bound]}",
            "test NLL {task.fields[nll]}",
            "{task.fields[evaluations]} evaluations",
        )
        self._first = trainer.iteration
        self._task = self._progress.add_task(
            "epoch 0.0", total=total, speed=0.0, bound="–", nll="–", evaluations="0"
        )

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
            description=f"epoch {trainer.epoch:.1f}",
            completed=trainer.iteration,
            speed=(trainer.iteration - self._first) / max(seconds, 1e-9),
            nll="–" if test is None else f"{test['nll']:.2f}",
            evaluations=_short(trainer.spent["evaluations"]),
        )

    def print_test(self) -> None:
        """Print the result of a test where no live bar shows it."""
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
