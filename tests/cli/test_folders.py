"""No command writes into a folder of another one, or over files of the user's."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlmcgrad.cli.commands import COMMANDS as EVERY
from tests.faults.commands import COMMANDS, call, needed, resume, shortened
from tests.folders import content


@pytest.fixture(scope="module", autouse=True)
def _shortened() -> Iterator[None]:
    with shortened():
        yield


def test_every_command_that_writes_a_folder_is_among_these() -> None:
    assert set(COMMANDS) == set(EVERY) - {"data"}


@pytest.mark.parametrize("name", COMMANDS)
def test_folders_of_others_and_files_of_the_user_are_refused(name: str, tmp_path: Path) -> None:
    options = needed(name, tmp_path)
    found = {
        **{f"of {other}": ("config.json", other) for other in COMMANDS if other != name},
        **{file: (file, None) for file in ("config.json", "metrics.jsonl", "summary.json")},
    }
    for kind, (file, owner) in found.items():
        folder = tmp_path / kind
        folder.mkdir()
        (folder / file).write_text(json.dumps({"experiment": owner} if owner else {"mine": 1}))
        before = content(tmp_path)
        for more in ((), resume(name)):
            code, said = call(name, folder, *options, *more)
            assert (code, said.count("\n")) == (2, 1), said
            assert f"out: {folder} holds" in said
            assert "--force" in said
        assert content(tmp_path) == before
        assert [path.name for path in folder.iterdir()] == [file]


@pytest.mark.parametrize("name", ["train", "bound"])
def test_force_moves_all_that_a_run_wrote_and_says_where(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert call(name, tmp_path)[0] == 0
    before = content(tmp_path)
    assert call(name, tmp_path, "--force")[0] == 0
    assert content(tmp_path / "old-1") == before
    assert f"now in {tmp_path / 'old-1'}" in caplog.text
