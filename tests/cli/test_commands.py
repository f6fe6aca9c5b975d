"""The command line: quick to answer, clear when something is wrong."""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import mlmcgrad
from mlmcgrad.cli.commands import COMMANDS, main, parse

HELP = """
import sys
from mlmcgrad.cli import main
for command in {commands!r}:
    try:
        main([*command, "--help"])
    except SystemExit:
        pass
late = [name for name in ("torch", "numpy", "matplotlib", "pandas") if name in sys.modules]
assert not late, late
"""
TYRO = """
import tyro, rich.console
try:
    tyro.extras.subcommand_cli_from_dict({"a": lambda x: x, "b": lambda x: x}, args=["--help"])
except SystemExit:
    pass
"""


def _spent(code: str) -> float:
    """Processor time of a new process."""
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    after = os.times()
    assert done.returncode == 0, done.stderr
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system


def test_help_needs_no_library_that_is_slow_to_import() -> None:
    _spent(HELP.format(commands=[[], *([name] for name in COMMANDS)]))


@pytest.mark.parametrize("command", [[], ["train"]])
def test_help_answers_at_once(command: list[str]) -> None:
    """At most four times as slow as the help of two empty commands; with torch it is fourteen.

    The machine may be busy: the best of five tells.
    """
    code = HELP.format(commands=[command])
    assert any(_spent(code) < 4.0 * _spent(TYRO) for _ in range(5))


def test_the_help_of_train_fits_two_screens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 110
    shown = re.findall(r"(?m)^\W --(\w+)", said)
    assert shown[:7] == ["dataset", "iterations", "seed", "out", "resume", "force", "method"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mlmcgrad {mlmcgrad.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_without_a_command_there_is_an_overview(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each command, none wider than a terminal, and a first command that works."""
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != "m"]
    assert named == list(COMMANDS)
    assert all(len(line) <= 80 for line in lines)
    (first,) = (line.split()[1:] for line in lines if line.startswith("  mlmcgrad "))
    assert parse(first)[0] == "reproduce"
    assert "--version" in lines[-1]


def test_common_options_come_first_in_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the text of an option is one paragraph, whatever the line breaks of the source are."""
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    said = capsys.readouterr().out
    shown = re.findall(r"(?m)^\W --(\w+)", said)
    assert shown[:4] == ["preset", "dataset", "optimizer", "methods"]
    assert shown[-6:] == ["out", "resume", "force", "jobs", "dask", "device"]
    assert "such as tcp://host:8786, or local:4 to start" in said


@pytest.mark.parametrize(("kind", "target"), COMMANDS.values(), ids=list(COMMANDS))
def test_every_command_is_called_with_its_settings_and_a_console(kind: type, target: str) -> None:
    module, _, name = target.partition(":")
    run = getattr(import_module(f"mlmcgrad.{module}"), name)
    settings, console = inspect.signature(run).parameters.values()
    assert settings.annotation.rpartition(".")[2] == kind.__name__
    assert console.name == "console"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert f"mlmcgrad {command}" in said
    # `data` writes to the cache, all others to a folder that one may name.
    assert ("--source" if command == "data" else "--out") in said


def test_bad_settings_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--truncation", "48"]) == 2
    said = capsys.readouterr().err
    assert said == "mlmcgrad: truncation must be a power of two ≥ 4, got 48\n"
    with pytest.raises(SystemExit):
        main(["nonsense"])


def test_memory_that_ran_out_is_said_and_no_other_error_is_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlmcgrad.paper.datasets.digits", lambda: torch.empty(2**58))
    assert main(["data", "digits"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mlmcgrad: memory ran out (")
    assert said.endswith("); ask for less at a time\n")
    monkeypatch.setattr("mlmcgrad.paper.datasets.digits", lambda: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        main(["data", "digits"])


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert f"File exists: '{tmp_path / 'file'}'" in capsys.readouterr().err


def test_only_train_runs_on_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["bound", "--preset", "smoke"]) == 2
    said = "mlmcgrad: only train runs on several processes; start others without torchrun\n"
    assert capsys.readouterr().err == said
