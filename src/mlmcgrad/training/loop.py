"""Training that never loses work.

The run folder:

    config.json                settings, images and versions
    metrics.jsonl              see `run.py`
    checkpoints/               the last two; see `runs/checkpoint.py`
    samples-*.png, reconstructions-*.png
    dump-*.pt                  the iteration at which numbers stopped being finite
    summary.json               when the run is complete

On a CPU the same settings give the same bits, whether or not the run was killed and resumed on the
way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mlmcgrad.distributed.worlds import current
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.runs.metrics import check_tensorboard
from mlmcgrad.runs.owner import held
from mlmcgrad.runs.signals import RESUME, Signals, Stopped
from mlmcgrad.runs.workers import threads
from mlmcgrad.training import budget
from mlmcgrad.training.config import Config
from mlmcgrad.training.data import Source, load
from mlmcgrad.training.device import flushed
from mlmcgrad.training.processes import agree, decided, follow, same_state
from mlmcgrad.training.progress import Bar
from mlmcgrad.training.resume import OWNER, begin
from mlmcgrad.training.run import Run
from mlmcgrad.training.trainer import Trainer


@dataclass(frozen=True)
class Result:
    """A run that is complete."""

    model: LatentModel
    folder: Path
    summary: dict[str, Any]  # what summary.json holds; without tests in a process that follows


def train(
    config: Config,
    console: Console | None = None,
    *,
    on_step: Callable[[int], None] | None = None,
    claim: Callable[[], None] | None = None,
    _source: Source | None = None,
) -> Result:
    """Train a model, or continue to.

    Args:
        config: the settings.
        console: where to show the progress; None shows nothing.
        on_step: called with the number of iterations done, after each one.
        claim: the folder is shared by processes that claim a run before they train it
            (`runs.claims`). Called before anything is written; what it raises, because another
            process has taken the run, ends the run here as if it had been killed.

    Returns:
        The trained model and the numbers of `summary.json`.

    Raises:
        ValueError: a setting cannot be used, or differs from that of the run to resume; or a file
            of that run is missing or damaged.
        OSError: a file cannot be written; the last checkpoint is intact.
        Stopped: SIGINT, SIGTERM or SIGHUP; everything is saved.
        LostError: another process of the same training has ended; the last checkpoint is intact.
        DivergedError: the loss, the weights or the gradient are not finite.
    """
    settings = decided(config).settings()
    if settings.tensorboard:
        check_tensorboard()
    budget.check_pictures(settings)
    source = _source or load(settings)
    budget.check(settings, source)
    with threads(settings.threads), flushed():
        trainer = Trainer(settings, source)
        if current().rank:  # the first process writes, the others compute with it
            with Signals() as signals:
                follow(trainer, signals, on_step)
            return Result(trainer.model, settings.out, trainer.where())
        how = {"resume": settings.resume, "force": settings.force, "shared": claim is not None}
        with held(settings.out, OWNER, **how) as before:
            signals = Signals()
            run = Run(trainer, begin(trainer, before), signals, claim or (lambda: None))
            with closing(run.metrics), signals:
                same_state(trainer)
                return _finish(run, signals, console, on_step)


def _finish(
    run: Run, signals: Signals, console: Console | None, on_step: Callable[[int], None] | None
) -> Result:
    """Train to the end; a signal saves and stops."""
    trainer = run.trainer
    try:
        with Bar(console, trainer, run.settings.iterations) as bar:
            _loop(run, signals, bar, on_step)
        return Result(trainer.model, run.folder, run.finish())
    except Stopped as stopped:
        run.save()
        status = f"stopped after iteration {trainer.iteration}, all saved in {run.folder}"
        raise Stopped(stopped.number, f"{status}; {RESUME}") from None


def _loop(run: Run, signals: Signals, bar: Bar, on_step: Callable[[int], None] | None) -> None:
    trainer = run.trainer
    run.save()
    while trainer.iteration < run.settings.iterations or not trainer.recorded:
        try:
            _iteration(run, bar, on_step)
            number = signals.number
        except Stopped as stopped:  # at once; the other processes are told
            number = stopped.number
        agree(number)
    run.save()


def _iteration(run: Run, bar: Bar, on_step: Callable[[int], None] | None) -> None:
    trainer = run.trainer
    if trainer.recorded:
        run.step()
        bar.update(run.elapsed())
        if on_step is not None:
            on_step(trainer.iteration)
    run.record()
    if run.tests():
        bar.print_test()
    if run.due():
        run.save()
