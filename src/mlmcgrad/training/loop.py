"""Training that never loses work.

The run folder:

    config.json                settings, images and versions
    metrics.jsonl              see `metrics.py`
    checkpoints/               the last two; see `checkpoint.py`
    samples-*.png, reconstructions-*.png
    dump-*.pt                  where the numbers stopped being numbers
    summary.json               when the run is complete

On a CPU the same settings give the same bits, whether or not the run was killed and resumed on the
way.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import mlmcgrad
from mlmcgrad.iwae.networks import LatentModel
from mlmcgrad.runs import checkpoint
from mlmcgrad.runs.lock import alone
from mlmcgrad.runs.metrics import check_tensorboard
from mlmcgrad.runs.signals import Signals
from mlmcgrad.training.config import Config, check_same
from mlmcgrad.training.errors import Stopped
from mlmcgrad.training.progress import Bar
from mlmcgrad.training.run import SUMMARY, Run, write_json
from mlmcgrad.training.source import Source, load
from mlmcgrad.training.trainer import Trainer

CONFIG = "config.json"


@dataclass(frozen=True)
class Result:
    """A run that is complete."""

    model: LatentModel
    folder: Path
    summary: dict[str, Any]  # what summary.json holds


def train(
    config: Config,
    console: Console | None = None,
    *,
    on_step: Callable[[int], None] | None = None,
    _source: Source | None = None,
) -> Result:
    """Train a model, or continue to.

    Args:
        config: the settings.
        console: where to show the progress; None shows nothing.
        on_step: called with the number of iterations done, after each one.

    Returns:
        The trained model and the numbers of `summary.json`.

    Raises:
        ValueError: a setting cannot be used, or is not that of the run to resume.
        OSError: a file cannot be written; the last checkpoint is intact.
        Stopped: SIGINT or SIGTERM; everything is saved.
        DivergedError: the loss, the weights or the gradient are not finite.
    """
    config = config.resolved()
    if config.tensorboard:
        check_tensorboard()
    source = _source or load(config)
    with _threads(config.threads), alone(config.folder):
        trainer = Trainer(config, source)
        seconds = _open(config, trainer)
        run = Run(config, trainer, seconds)
        with closing(run.metrics), Signals() as signals:
            with Bar(console, trainer, config.iterations) as bar:
                _loop(run, signals, bar, on_step)
            return Result(trainer.model, config.folder, run.finish())


def _loop(run: Run, signals: Signals, bar: Bar, on_step: Callable[[int], None] | None) -> None:
    config, trainer = run.config, run.trainer
    run.save()
    while trainer.iteration < config.iterations:
        with run.guarded():
            trainer.step()
        bar.update(run.elapsed())
        if on_step is not None:
            on_step(trainer.iteration)
        if trainer.iteration % config.log_every == 0:
            run.line()
            trainer.window.clear()
        if config.tests_at(trainer.iteration):
            run.evaluate()
            bar.tell()
        if run.due():
            run.save()
        if signals.number is not None:
            run.save()
            raise _stopped(signals.number, trainer.iteration, run.folder)
    run.save()


def _open(config: Config, trainer: Trainer) -> float | None:
    """Prepare the run folder, load the checkpoint if there is one; seconds spent so far."""
    folder = config.folder
    used = (folder / CONFIG).exists() or (folder / checkpoint.FOLDER).exists()
    if used and not config.resume:
        raise ValueError(
            f"out: {folder} holds a run already; continue it with --resume, or name another "
            "folder with --out"
        )
    state = checkpoint.latest(folder)
    seconds = None
    if state is not None:
        about = trainer.source.about()
        check_same({**config.settings(), **about}, {**state["settings"], **state["source"]})
        if state["iteration"] > config.iterations:
            raise ValueError(
                f"iterations must be at least {state['iteration']}, where the run in {folder} "
                f"is already, got {config.iterations}"
            )
        trainer.load(state)
        seconds = float(state["seconds"])
    versions = {"mlmcgrad": mlmcgrad.__version__, "torch": torch.__version__}
    record = {
        "experiment": "train",
        "settings": config.settings(),
        "source": trainer.source.about(),
        "versions": versions,
    }
    write_json(folder / CONFIG, record)
    (folder / SUMMARY).unlink(missing_ok=True)  # it comes back when the run is complete
    return seconds


def _stopped(number: int, iteration: int, folder: Path) -> Stopped:
    name = signal.Signals(number).name
    return Stopped(
        f"{name}: stopped after iteration {iteration}, all saved; continue with the same command "
        f"and --resume (run folder {folder})",
        128 + number,
        iteration,
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


__all__ = ["CONFIG", "Result", "train"]
