"""The table of commands: which settings each one takes, and which module runs it.

The settings of a command are a dataclass, from which its options are made. torch is imported only
when a command runs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import tyro
from rich.console import Console

import mlmcgrad
from mlmcgrad.cli.data import Data
from mlmcgrad.cli.fit import Fit
from mlmcgrad.experiments.boltzmann.settings import Boltzmann
from mlmcgrad.experiments.bound.settings import Bound
from mlmcgrad.experiments.demo.settings import Demo
from mlmcgrad.experiments.plan.settings import Plan
from mlmcgrad.experiments.rates.settings import Rates
from mlmcgrad.experiments.reproduce.settings import Report, Reproduce
from mlmcgrad.experiments.scaling.settings import Scaling
from mlmcgrad.training.config import Config

DESCRIPTION = "Multilevel Monte Carlo gradients through a Markov chain; --version: which version."
COMMANDS: dict[str, tuple[type, str]] = {
    "fit": (Fit, "cli.fit"),
    "reproduce": (Reproduce, "experiments.reproduce.run"),
    "data": (Data, "cli.data"),
    "boltzmann": (Boltzmann, "experiments.boltzmann.run"),
    "demo": (Demo, "experiments.demo.run"),
    "scaling": (Scaling, "experiments.scaling.run"),
    "rates": (Rates, "experiments.rates.run"),
    "bound": (Bound, "experiments.bound.run"),
    "train": (Config, "cli.train"),
    "plan": (Plan, "experiments.plan.run"),
    "report": (Report, "experiments.reproduce.report"),
}
"""The settings of each command, and the module whose `run(settings, console)` it calls."""


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code: 0, or 2 for an error."""
    if arguments == ["--version"]:
        sys.stdout.write(f"mlmcgrad {mlmcgrad.__version__}\n")
        return 0
    try:
        settings, module = _parse(arguments)
        if module != "cli.train" and _one_of_many():
            raise ValueError("only train runs on several processes; start others without torchrun")
        if getattr(settings, "slurm", 0):
            settings = import_module("mlmcgrad.cli.slurm").follow(arguments[0], settings, Console())
        import_module(f"mlmcgrad.{module}").run(settings, Console())
    except (ValueError, OSError, FloatingPointError) as error:
        sys.stderr.write(f"mlmcgrad: {error}\n")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _no_memory(error):
            raise
        wanted = str(error).splitlines()[0] if str(error) else "no more can be had"
        sys.stderr.write(f"mlmcgrad: memory ran out ({wanted}); ask for less at a time\n")
        return 2
    return 0


def _parse(arguments: list[str]) -> tuple[Any, str]:
    """The settings that the options make, and the module that runs them."""
    # tyro makes twins that check nothing, so that what settings refuse is said by `main`, in one
    # line: tyro would put it into a box, after the name of a class that no user knows.
    twins: dict[str, Any] = {
        name: type(kind.__name__, (kind,), {"__post_init__": _accept, "__doc__": kind.__doc__})
        for name, (kind, _) in COMMANDS.items()
    }
    options: Any = tyro.extras.subcommand_cli_from_dict(
        twins, prog="mlmcgrad", description=DESCRIPTION, args=arguments
    )
    (name,) = (name for name, twin in twins.items() if twin is type(options))
    kind, module = COMMANDS[name]
    return kind(**vars(options)), module


def _one_of_many() -> bool:
    """Whether torchrun has started this process and others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def _accept(_: object) -> None:
    """Check nothing."""


def _no_memory(error: Exception) -> bool:
    """Whether an allocation failed; on a CPU torch has no class of its own for that."""
    return isinstance(error, MemoryError) or "tried to allocate" in str(error).lower()
