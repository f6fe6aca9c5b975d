"""One process at a time in a folder, whichever command it is."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlmcgrad.paper.runs.folder import LOCK, locked
from tests.faults.commands import COMMANDS, add_mine, call, files, needed, resume, shortened

HELD = """
import sys
from mlmcgrad.cli import main
from mlmcgrad.paper.experiments import bound

def draw(folder, findings):
    print("drawing", flush=True)
    sys.stdin.readline()
    return folder / "bound.png"

bound.draw = draw
sys.exit(main(["bound", "--preset", "smoke", "--out", sys.argv[1]]))
"""


@pytest.fixture(scope="module", autouse=True)
def _shortened() -> Iterator[None]:
    with shortened():
        yield


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_in_use_is_refused(name: str, tmp_path: Path) -> None:
    options = needed(name, tmp_path)
    folder = tmp_path / "out"
    add_mine(folder)
    before = sorted(folder.rglob("*"))
    with locked(folder):
        for more in ((), resume(name), ("--force",)):
            code, said = call(name, folder, *options, *more)
            assert code == 2
            assert f"another process is using {folder}" in said
    assert sorted(folder.rglob("*")) == sorted([*before, folder / LOCK])


def test_two_real_processes(tmp_path: Path) -> None:
    """The first is held while it draws: the second is refused, and the first ends as it would."""
    command = [sys.executable, "-c", HELD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        while first.stdout.readline() != "drawing\n":  # after the results
            assert first.poll() is None
        before = {name: path.read_bytes() for name, path in files(tmp_path).items()}
        for more in ((), ("--force",)):
            code, said = call("bound", tmp_path, *more)
            assert (code, said.count("\n")) == (2, 1)
            assert "another process is using" in said
        assert {name: path.read_bytes() for name, path in files(tmp_path).items()} == before
        first.communicate("go on\n")
        assert first.returncode == 0
    assert call("bound", tmp_path)[0] == 0
