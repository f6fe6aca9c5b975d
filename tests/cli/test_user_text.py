"""What users name is data: paths, files and groups are taken and printed as they are."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from mlmcgrad.cli import main
from mlmcgrad.cli.commands import LastingConsole, parse
from mlmcgrad.paper.runs.process import bars
from tests.faults.commands import call, shortened

ESCAPE = "\x1b]0;owned\x07\x9b31m"
SPELLED = r"\x1b]0;owned\x07\x9b31m"


def test_the_home_folder_is_named_by_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell replaces it in `--out ~/run`, but not in `--out=~/run`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    _, settings = parse(["train", "--out=~/run", "--dataset=~/a.npz", "--lr", "0.1"])
    assert (settings.out, settings.dataset) == (tmp_path / "run", tmp_path / "a.npz")
    _, settings = parse(["report", "~/a", "b", "--out=~nobody-here/x"])
    assert settings.folders == (tmp_path / "a", Path("b"))
    assert settings.out == Path("~nobody-here/x")


def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"run-\xff-\xc3\xa9")
    with shortened():
        assert call("train", out) == (0, "")
        assert call("train", out, "--resume") == (0, "")
    record = json.loads((out / "config.json").read_bytes())
    assert record["settings"]["out"] == str(out)


@pytest.mark.parametrize("name", ["[/about]", "[bold]x", ":smile:", "[link=file:///etc]"])
def test_text_is_no_markup(name: str) -> None:
    console = LastingConsole(file=io.StringIO(), force_terminal=True, width=100)
    table = Table(name, title=name)
    table.add_row(name)
    console.print(table)
    console.print(name)
    with bars(console, "{task.fields[name]}") as progress:
        progress.add_task(name, total=1, name=name)
    assert console.file.getvalue().count(name) >= 6  # type: ignore[attr-defined]


def test_a_terminal_obeys_no_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{ESCAPE}.npz"
    assert main(["data", str(path)]) == 2
    images = np.zeros((3, 4, 4), np.uint8)
    with path.open("wb") as file:
        np.savez(file, train=images, test=images)
    assert main(["data", str(path)]) == 0
    for said in capsys.readouterr():
        assert SPELLED in said
        assert not set(said) & {"\x1b", "\x07", "\x9b"}
