"""A full disk: a message that names the file, no half file, and the rest when there is room.

Each trial limits files to one byte less than one of the files of an undisturbed run has, so that
each file in turn is the one that does not fit.
"""

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.faults import files_at_most, times
from tests.faults.commands import (
    COMMANDS,
    MINE,
    add_mine,
    call,
    chosen,
    files,
    half,
    mine,
    needed,
    numbers,
    resume,
    shortened,
)

# Drawing takes seconds: the commands that draw most are tried in `make faults` only.
TRIALS = {name: times(0, 10) for name in COMMANDS} | {
    "train": times(1, 40),
    "bound": times(1, 40),
    "scaling": times(0, 40),
}


@pytest.fixture(scope="module", autouse=True)
def _shortened() -> Iterator[None]:
    with shortened():
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, trials in TRIALS.items() if trials])
def test_every_file_in_turn_does_not_fit(name: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    options = needed(name, tmp_path)
    assert call(name, whole, *options)[0] == 0
    config = json.loads((whole / "config.json").read_text())
    common = {"config.json", "metrics.jsonl", "summary.json", "lock"}
    for top in {path.name for path in whole.iterdir()} - common:  # --force moves what is named
        assert any(fnmatchcase(top, each) for each in config["files"]), top
    sizes = sorted({path.stat().st_size for path in files(whole).values()})
    for size in chosen(name, sizes, TRIALS[name]):
        folder = tmp_path / str(size)
        add_mine(folder)
        with files_at_most(size - 1):
            code, said = call(name, folder, *options)
        assert code == 2, (size, said)
        assert said.count("\n") == 1, said
        assert "cannot write" in said, said
        assert "File too large" in said, said
        assert half(folder) == [], size
        code, said = call(name, folder, *options, *resume(name))
        assert (code, said) == (0, ""), size
        assert half(folder) == []
        assert set(files(folder)) == set(files(whole))
        assert numbers(folder) == numbers(whole)
        assert mine(folder) == MINE
