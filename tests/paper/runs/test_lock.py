"""One process at a time in a run folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from mlmcgrad.paper.runs.folder import locked
from tests.paper.training import tiny


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ValueError, match=r"another process is using .*--out"):
        tiny.run(tmp_path)
    tiny.run(tmp_path, iterations=1)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from mlmcgrad.paper.runs.folder import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('locked', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match="another process is using"), locked(tmp_path):
            pass
        holder.kill()
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"File exists: .*file"):
        tiny.run(tmp_path / "file")
