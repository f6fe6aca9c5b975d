"""The command line: `mlmcgrad COMMAND --help` says what each command takes."""

from mlmcgrad.cli.main import main

__all__ = ["main"]
