"""What a pool of jobs shows while it works."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import TaskID

from mlmcgrad.runs.progress import bars
from mlmcgrad.runs.workers import Ended


class Display:
    """One bar for everything, and one for each job that is going on.

    Where there is no terminal, a line for each job that has ended; a failure is always a line.
    """

    def __init__(self, jobs: int, finished: int, console: Console) -> None:
        self.console, self.jobs, self.finished = console, jobs + finished, finished
        self.progress = bars(console, "{task.fields[state]}")
        state = f"{finished}/{self.jobs}"
        self.whole = self.progress.add_task("all", total=self.jobs, completed=finished, state=state)
        self.tasks: dict[str, TaskID] = {}
        self.waiting = ""

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def show(self, name: str, message: float | Ended) -> None:
        """Show how much of a job is done, or that it has ended."""
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=1.0, state="")
        if isinstance(message, Ended):
            self.progress.remove_task(self.tasks.pop(name))
            self.finished += 1
            if message.error is not None or not self.console.is_terminal:
                outcome = "done" if message.error is None else f"failed: {message.reason}"
                self._print(f"{name}: {outcome}")
        else:
            self.progress.update(self.tasks[name], completed=message, state=f"{message:.0%}")
        self._count()

    def drop(self, name: str) -> None:
        """Forget a job that another process has taken."""
        if name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))

    def others(self, names: Sequence[str], hosts: Sequence[str]) -> None:
        """Show what other processes have done, and where those run that are waited for.

        Args:
            names: jobs that they have ended.
            hosts: of jobs that they have, if there is nothing else to do; else nothing.
        """
        self.finished += len(names)
        if not self.console.is_terminal:
            for name in names:
                self._print(f"{name}: done by another process")
        where = ", ".join(sorted(set(hosts)))
        text = f"waiting for {len(hosts)} that run on {where}" if hosts else ""
        if text and text != self.waiting and not self.console.is_terminal:
            self._print(text)
        self.waiting = text
        self._count()

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _count(self) -> None:
        done = self.finished + sum(task.completed for task in self.progress.tasks[1:])
        state = f"{self.finished}/{self.jobs}"
        state = f"{state}, {self.waiting}" if self.waiting else state
        self.progress.update(self.whole, completed=done, state=state)
