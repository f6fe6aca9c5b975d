"""Where a run begins: anew, or after its newest checkpoint that is intact.

Everything in the run folder is read and checked before the first file is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlmcgrad.distributed.worlds import launch
from mlmcgrad.runs import checkpoint
from mlmcgrad.runs.folder import CHECKPOINTS, CONFIG, METRICS, SUMMARY, as_record
from mlmcgrad.runs.metrics import intact
from mlmcgrad.runs.owner import Owner, aside, check_same, write_config
from mlmcgrad.training.config import FREE, Settings
from mlmcgrad.training.trainer import Trainer

OWNER = Owner(
    "train",
    (
        CHECKPOINTS,
        "samples-[0-9]*.png",
        "reconstructions-[0-9]*.png",
        "dump-[0-9]*.pt",
        "tensorboard",
    ),
)


@dataclass(frozen=True)
class Begin:
    """What a run has behind it."""

    seconds: float = 0.0  # of training, by the processes that this one continues
    lines: tuple[bytes, ...] = ()  # of metrics.jsonl
    saved: bool = False  # whether there is a checkpoint that knows of these lines


def begin(trainer: Trainer, before: dict[str, Any]) -> Begin:
    """Load the newest checkpoint into the trainer, if there is one, and write config.json.

    Args:
        trainer: a new one.
        before: what config.json of the run to continue holds, see `runs.owner.held`.

    Raises:
        ValueError: the run is another one, or something of it is missing or damaged.
    """
    settings, about, folder = trainer.settings, trainer.source.about(), trainer.settings.out
    if before:
        path = folder / CONFIG
        check_same(path, _both(before), settings, FREE, **about)
    state = checkpoint.latest(folder, lambda path, state: restore(trainer, path, state))
    start = Begin()
    if state is None:
        _check_unbegun(folder)
    else:
        if state["iteration"] > settings.iterations:
            raise ValueError(
                f"iterations must be ≥ {state['iteration']}, where the run in {folder} already "
                f"is, got {settings.iterations}"
            )
        start = _lines(settings, state)
    by = {"launch": launch()} if launch() else {}
    write_config(folder, OWNER, settings=as_record(settings), source=about, **by)
    (folder / SUMMARY).unlink(missing_ok=True)  # it is written when the run is complete
    return start


def restore(trainer: Trainer, path: Path, state: dict[str, Any]) -> None:
    """Load a checkpoint, or raise a ValueError that says why it cannot be used."""
    check_same(path, _both(state), trainer.settings, FREE, **trainer.source.about())
    seconds, lines = state.get("seconds"), state.get("lines", 0)
    if not isinstance(seconds, float | int) or not isinstance(lines, int):
        raise ValueError(f"its seconds are {seconds!r} and its lines {lines!r}")
    trainer.load(state)


def _both(record: dict[str, Any]) -> dict[str, Any] | None:
    settings, source = record.get("settings"), record.get("source")
    if isinstance(settings, dict) and isinstance(source, dict):
        return {**settings, **source}
    return None


def _check_unbegun(folder: Path) -> None:
    """Without a checkpoint there must be nothing that a run has computed."""
    for name in (METRICS, SUMMARY):
        path = folder / name
        if path.exists() and path.stat().st_size:
            raise ValueError(
                f"{folder / CHECKPOINTS} holds no checkpoint, but {path} is of a run that had "
                "some; put them back, or start over with --force instead of --resume, which moves "
                "what is left aside"
            )


def _lines(settings: Settings, state: dict[str, Any]) -> Begin:
    """The lines of metrics.jsonl up to a checkpoint; what is wrong is refused or moved aside."""
    kept, wrong = intact(settings.out, state["iteration"], state.get("lines"))
    if wrong and not settings.force:
        raise ValueError(
            f"{wrong}; the checkpoint of iteration {state['iteration']} is intact: put the file "
            "back, or continue with --resume --force, which moves it aside and keeps the "
            f"{len(kept)} lines that are intact"
        )
    if wrong and (settings.out / METRICS).exists():
        aside(settings.out, [METRICS])
    return Begin(float(state["seconds"]), tuple(kept), saved=not wrong)
