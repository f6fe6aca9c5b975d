"""The command line: `mlmcgrad COMMAND --help` says what each command takes."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        from mlmcgrad.cli.commands import main as run
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"mlmcgrad: the command line needs the package {error.name}; "
            "pip install 'mlmcgrad[cli]'\n"
        )
        return 2
    return run(arguments)


__all__ = ["main"]
