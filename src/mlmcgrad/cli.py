"""The command line: `mlmcgrad COMMAND --help` says what each command takes.

The settings of a command are a dataclass (in `experiments/config.py`; of `train`, in
`iwae/config.py`), and the command line is made from it; the module of the same name in
`experiments/` runs it. torch is imported only when a command really runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import tyro

import mlmcgrad
from mlmcgrad.experiments import config
from mlmcgrad.iwae.config import Config

DESCRIPTION = "Multilevel Monte Carlo gradients for models trained through a Markov chain."
COMMANDS: dict[str, Callable[..., Any]] = {
    "reproduce": config.Reproduce,
    "data": config.Data,
    "demo": config.Demo,
    "scaling": config.Scaling,
    "rates": config.Rates,
    "bound": config.Bound,
    "train": Config,
    "report": config.Report,
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        sys.stdout.write(f"mlmcgrad {mlmcgrad.__version__}\n")
        return 0
    try:
        settings: Any = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="mlmcgrad", description=DESCRIPTION, args=given
        )
        name = next(name for name, kind in COMMANDS.items() if kind is type(settings))
        import_module(f"mlmcgrad.experiments.{name}").run(settings)
    except (ValueError, OSError, FloatingPointError) as error:
        sys.stderr.write(f"mlmcgrad: {error}\n")
        return 2
    except KeyboardInterrupt as stopped:
        # A training run that was told to stop says where it is and which signal it was.
        sys.stderr.write(f"mlmcgrad: {stopped if stopped.args else 'interrupted'}\n")
        return int(getattr(stopped, "code", 130))
    return 0


__all__ = ["main"]
