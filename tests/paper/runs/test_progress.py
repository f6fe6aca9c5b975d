"""Bars are for terminals."""

import io

import pytest
from rich.console import Console

from mlmcgrad.paper.runs.process import bars


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_are_shown_on_a_terminal_only(terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(force_terminal=terminal, width=100, file=stream)
    with bars(console, "{task.completed:.0f} of {task.total:.0f}") as progress:
        progress.add_task("apples", total=7, completed=3)
    text = stream.getvalue()
    assert ("apples" in text and "3 of 7" in text) if terminal else text == ""


def test_without_a_console_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with bars(None) as progress:
        progress.update(progress.add_task("apples", total=7), advance=1)
    assert capsys.readouterr().out == ""
