"""The live bar of a run, and its lines where there is no terminal."""

from pathlib import Path

from rich.console import Console

from mlmcgrad.paper.training.loop import train
from tests.paper.training import tiny


def test_the_bar_shows_epoch_bound_test_and_budget(tmp_path: Path) -> None:
    console = Console(force_terminal=True, width=160, file=(tmp_path / "log").open("w"))
    with console.file:
        train(tiny.config(tmp_path / "run"), console, _source=tiny.source())
    text = (tmp_path / "log").read_text()
    for word in ("epoch", "it/s", "bound", "test NLL", "evaluations"):
        assert word in text
