"""A training as its last checkpoint left it, for those who only look at it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from mlmcgrad.runs import checkpoint
from mlmcgrad.runs.folder import CHECKPOINTS
from mlmcgrad.training import budget
from mlmcgrad.training.config import Dataset, Settings
from mlmcgrad.training.data import load
from mlmcgrad.training.resume import restore
from mlmcgrad.training.trainer import Trainer


def saved(folder: Path) -> Trainer:
    """Read the newest checkpoint that is intact; nothing in the folder is changed.

    Args:
        folder: that `train` has written, also while it goes on.

    Raises:
        ValueError: it holds no training, or something of it is missing or damaged.
    """
    found: list[Trainer] = []

    def use(path: Path, state: dict[str, Any]) -> None:
        settings = _settings(state.get("settings"), folder)
        source = load(settings)
        budget.check(settings, source)
        trainer = Trainer(settings, source)
        restore(trainer, path, state)
        found.append(trainer)

    if checkpoint.latest(folder, use, rename=False) is None:
        raise ValueError(
            f"run: {folder / CHECKPOINTS} holds no checkpoint; name a folder that `mlmcgrad train` "
            "has written"
        )
    return found[-1]


def _settings(record: Any, folder: Path) -> Settings:
    """The settings that a checkpoint has; those that it lacks have the default value."""
    names = {field.name for field in fields(Settings)}
    try:
        values = {name: value for name, value in record.items() if name in names}
        if values["dataset"] not in get_args(Dataset):
            values["dataset"] = Path(values["dataset"])
        return Settings(**{**values, "out": folder})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its settings cannot be used ({error!r})") from error
