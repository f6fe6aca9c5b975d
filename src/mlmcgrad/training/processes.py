"""One training on several processes: what they agree on.

`torchrun` starts them. The first one decides the settings, holds the run folder and writes
everything; the others get its state, compute their shards of every batch and write nothing. All of
them have the whole state (parameters, optimizer, order, states of the chains), so that a checkpoint
is that of a single process, and can be continued by any number of them.

A process that is killed is missed by the others in the next exchange: they end, and torchrun starts
all of them again if it was told to (`--max-restarts`). They then continue from the checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlmcgrad.distributed.collectives import from_first, most
from mlmcgrad.distributed.worlds import current, launch, restarted
from mlmcgrad.runs.folder import CONFIG, read_json
from mlmcgrad.runs.signals import Signals, Stopped
from mlmcgrad.training.config import Config
from mlmcgrad.training.trainer import Trainer


def decided(config: Config) -> Config:
    """The settings of all processes: those of the first, with the number of shards.

    Raises:
        ValueError: there are fewer shards than processes, or more than images in a batch.
    """
    if current().rank == 0:
        config = _decided(config)
    config = from_first(config)
    shards, batch, size = config.shards or 0, config.settings().batch_size, current().size
    if not size <= max(shards, 1) <= batch:
        few, many = "start fewer processes, or another run with more shards", "use fewer shards"
        raise ValueError(
            f"shards must be from {size}, the number of processes, to {batch}, the batch_size, got "
            f"{shards}; {many if shards > batch else few}"
        )
    return config


def same_state(trainer: Trainer) -> None:
    """Every process goes on from the state that the first one has."""
    if current().size > 1:
        state = from_first(trainer.state() if current().rank == 0 else None)
        if current().rank and state is not None:
            trainer.load(state)


def follow(
    trainer: Trainer, signals: Signals, on_step: Callable[[int], None] | None = None
) -> None:
    """Compute with the first process, and write nothing.

    Raises:
        Stopped: a signal has come to one of the processes.
        LostError: one of them has ended.
    """
    same_state(trainer)
    while trainer.iteration < trainer.settings.iterations or not trainer.recorded:
        if trainer.recorded:
            trainer.step()
            if on_step is not None:
                on_step(trainer.iteration)
        trainer.recorded = True  # by the first
        status = f"rank {current().rank} stopped after iteration {trainer.iteration}"
        agree(signals.number, status)


def agree(number: int | None, status: str = "") -> None:
    """Raise `Stopped` in all processes if one of them has the number of a signal."""
    asked = most(number or 0)
    if asked:
        raise Stopped(asked, status)


def _decided(config: Config) -> Config:
    before = _recorded(config.settings().out)
    if restarted() and before.get("launch") == launch():
        config = dataclasses.replace(config, resume=True, force=config.force and config.resume)
    if config.shards is not None:
        return config
    size = current().size
    shards = 0 if size == 1 else size
    settings = before.get("settings")
    if config.resume and isinstance(settings, dict) and isinstance(settings.get("shards"), int):
        shards = settings["shards"]
    return dataclasses.replace(config, shards=shards)


def _recorded(folder: Path) -> dict[str, Any]:
    """What config.json of a run says, if there is one that can be read."""
    try:
        return read_json(folder / CONFIG)
    except (OSError, ValueError):
        return {}
