"""The command line: quick to answer, clear when something is wrong."""

import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import mlmcgrad
from mlmcgrad.cli.commands import COMMANDS, main


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_answers_at_once_because_torch_is_not_imported(command: list[str]) -> None:
    code = (
        "import sys\nfrom mlmcgrad.cli import main\n"
        f"try:\n    main([*{command!r}, '--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    best = float("inf")
    for _ in range(3):  # the machine may be busy: processor time, and the fastest of three, tell
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        after = os.times()
        spent = after.children_user + after.children_system
        best = min(best, spent - before.children_user - before.children_system)
        assert done.returncode == 0, done.stderr
    assert best < 0.5
    for name in command or COMMANDS:
        assert name in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mlmcgrad {mlmcgrad.__version__}\n"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--version" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "module"), COMMANDS.values(), ids=list(COMMANDS))
def test_every_command_is_called_with_its_settings_and_a_console(kind: type, module: str) -> None:
    run = import_module(f"mlmcgrad.{module}").run
    settings, console = inspect.signature(run).parameters.values()
    assert settings.annotation == kind.__name__
    assert console.name == "console"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    # `data` writes to the cache, all others to a folder that one may name.
    assert ("--source" if command == "data" else "--out") in capsys.readouterr().out


def test_bad_settings_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--truncation", "48"]) == 2
    said = capsys.readouterr().err
    assert said == "mlmcgrad: truncation must be a power of two ≥ 4, got 48\n"
    with pytest.raises(SystemExit):
        main(["nonsense"])


def test_memory_that_ran_out_is_said_and_no_other_error_is_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlmcgrad.datasets.digits", lambda: torch.empty(2**58))
    assert main(["data", "digits"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mlmcgrad: memory ran out (")
    assert said.endswith("); ask for less at a time\n")
    monkeypatch.setattr("mlmcgrad.datasets.digits", lambda: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        main(["data", "digits"])


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert f"cannot make {tmp_path / 'file' / 'lock'}" in capsys.readouterr().err


def test_only_train_runs_on_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["bound", "--preset", "smoke"]) == 2
    said = "mlmcgrad: only train runs on several processes; start others without torchrun\n"
    assert capsys.readouterr().err == said
