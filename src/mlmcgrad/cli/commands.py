"""The table of commands: the settings of each one, and the function that runs it.

The settings of a command are a dataclass, from which its options are made. torch is imported only
when a command runs.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import tyro
from rich.console import Console
from rich.text import Text

import mlmcgrad
from mlmcgrad import mixed
from mlmcgrad._checks import positive, whole
from mlmcgrad._files import write_atomically
from mlmcgrad.cli import discard_output, say
from mlmcgrad.paper.experiments import settings as experiments
from mlmcgrad.paper.experiments.reproduce import settings as reproduce
from mlmcgrad.paper.runs.process import bars, printable
from mlmcgrad.paper.training import config as training

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit, FitStep
    from mlmcgrad.paper.datasets import Dataset

_ABOUT = "mlmcgrad fits models whose gradient is an expectation over hidden variables."
_FIRST = "mlmcgrad reproduce --preset minute"
# What each command has in common with others comes last in its help.
_LAST = ("out", "resume", "force", "jobs", "dask", "device")


@dataclass(frozen=True)
class FitSettings:
    """Fit a mixed-effects model by exact maximum likelihood."""

    files: ClassVar = ("fit.json", "table.txt", "random_effects.csv", "fit.png", "fit.svg")

    data: tyro.conf.Positional[Path]
    """CSV file with a header; rows with a missing value in a column of the formula are left out."""
    formula: tyro.conf.Positional[str]
    """For example "use ~ age + urban + (1 + urban | district)"; counts of successes as
    "y | trials(n) ~ …"."""
    family: Literal["bernoulli", "binomial", "poisson", "negative_binomial", "gaussian", "gamma"]
    """Distribution of the response."""
    link: Literal["logit", "probit", "cloglog"] | None = None
    """Link of bernoulli and binomial; logit by default."""
    out: Path | None = None
    """Folder for fit.json, the table, random effects and a figure; by default nothing is written.
    """
    force: bool = False
    """Move an earlier run in the folder aside, into old-1, old-2, …; nothing is deleted."""
    seed: int = 0
    """Seed of everything random."""
    tolerance: float = 0.02
    """Largest Monte Carlo error of an estimate, in its standard errors."""
    iterations: int = 2000
    """Maximum number of iterations; Ctrl-C stops earlier and shows the result so far."""

    def __post_init__(self) -> None:
        whole(self.seed, "seed", 0, experiments.SEEDS)
        positive(self.tolerance, "tolerance")
        whole(self.iterations, "iterations", 1, 2**31)
        if self.link is not None and self.family not in ("bernoulli", "binomial"):
            raise ValueError(
                f"link is for bernoulli and binomial only, got {self.link} for {self.family}; "
                "leave it out"
            )


@dataclass(frozen=True)
class DataSettings:
    """Fetch a dataset, verify it and say where it is cached."""

    dataset: tyro.conf.Positional[training.Dataset | Path]
    """mnist (10 to 12 MB) and cifar10 (140 to 170 MB) are downloaded once, digits ships with
    scikit-learn, and your own file NAME.npz is checked."""
    source: Path | None = None
    """Folder or tarball that holds mnist or cifar10, to use instead of the cache or a download."""

    def __post_init__(self) -> None:
        if self.source is not None and self.dataset not in ("mnist", "cifar10"):
            raise ValueError(
                f"source is for mnist and cifar10 only, got {self.source} for {self.dataset}; "
                "leave it out"
            )


COMMANDS: dict[str, tuple[type, str]] = {
    "fit": (FitSettings, "cli.commands:fit"),
    "train": (training.Config, "cli.commands:train"),
    "data": (DataSettings, "cli.commands:data"),
    "plan": (experiments.PlanSettings, "paper.experiments.plan:run"),
    "demo": (experiments.DemoSettings, "paper.experiments.demo:run"),
    "bound": (experiments.BoundSettings, "paper.experiments.bound:run"),
    "reproduce": (reproduce.Reproduce, "paper.experiments.reproduce.run:run"),
    "report": (reproduce.ReportSettings, "paper.experiments.reproduce.report:run"),
    "boltzmann": (experiments.BoltzmannSettings, "paper.experiments.boltzmann:run"),
    "scaling": (experiments.ScalingSettings, "paper.experiments.scaling:run"),
    "rates": (experiments.RatesSettings, "paper.experiments.rates:run"),
}
"""The settings of each command, and the function (`module:name`) called with them and a console."""
GROUPS = {
    "Fit models": ("fit",),
    "Train": ("train", "data"),
    "Plan and check": ("plan", "demo", "bound"),
    "The paper": ("reproduce", "report", "boltzmann", "scaling", "rates"),
}
"""The commands as the overview groups them."""


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code: 0, or 2 for an error."""
    if arguments in ([], ["-h"], ["--help"]):
        sys.stdout.write(overview())
        return 0
    if arguments == ["--version"]:
        sys.stdout.write(f"mlmcgrad {mlmcgrad.__version__}\n")
        return 0
    try:
        name, settings = parse(arguments)
        several = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
        if name != "train" and several:
            raise ValueError("only train runs on several processes; start others without torchrun")
        module, _, function = COMMANDS[name][1].partition(":")
        getattr(import_module(f"mlmcgrad.{module}"), function)(settings, LastingConsole())
    except (ValueError, OSError, FloatingPointError) as error:
        say(str(error))
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _no_memory(error):
            raise
        wanted = str(error).splitlines()[0] if str(error) else "no more can be had"
        say(f"memory ran out ({wanted}); ask for less at a time")
        return 2
    return 0


def overview() -> str:
    """Return what `mlmcgrad` prints without arguments: all commands, one line each."""
    lines = [_ABOUT, "", "First try, half a minute on two cores:", f"  {_FIRST}"]
    for group, names in GROUPS.items():
        lines += ["", group]
        for name in names:
            about, *_ = re.split("[;\n]", COMMANDS[name][0].__doc__ or "")
            lines.append(f"  {name:10} {about.rstrip('.')}")
    lines += ["", "mlmcgrad COMMAND --help lists the options of a command; mlmcgrad --version."]
    return "\n".join(lines) + "\n"


def train(config: training.Config, console: Console) -> dict[str, Any]:
    """Train and print the result; return the content of summary.json.

    Of processes that torchrun has started, the first one prints.
    """
    from mlmcgrad.distributed.world import group
    from mlmcgrad.paper.training.loop import train as run

    with group(config.run.device) as world:
        result = run(config, console if world.rank == 0 else None)
    summary = result.summary
    if world.rank:
        return summary
    bits = summary.get("bits_per_dimension")
    console.print(
        f"{config.gradient.method} on {config.dataset}: test NLL {summary['nll']:.2f} ± "
        f"{summary['nll_se']:.2f} nats per image"
        + (f" ({bits:.3f} bits per dimension)" if bits is not None else "")
        + f" after {summary['iteration']} iterations, "
        f"{summary['evaluations']} network evaluations, {summary['seconds']:.0f} s",
        soft_wrap=True,
    )
    console.print(f"run folder: {result.folder}", style="bold", soft_wrap=True)
    return summary


def data(settings: DataSettings, console: Console) -> Dataset:
    """Get the dataset with a progress bar, and print what it is and where it is cached."""
    from mlmcgrad.paper import datasets  # a third of the time of `mlmcgrad --help`
    from mlmcgrad.paper.datasets.dataset import sha256

    with bars(console) as bar:
        task = bar.add_task("looking in the cache", total=None)

        def show(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        if settings.dataset == "digits":
            images = datasets.digits()
        elif settings.dataset == "mnist":
            images = datasets.mnist(settings.source, progress=show)
        elif settings.dataset == "cifar10":
            images = datasets.cifar10(settings.source, progress=show)
        else:
            images = datasets.pictures(settings.dataset)
    lines = {"dataset": images.name, "from": images.source}
    lines |= {"cached in": str(images.folder)} if images.folder else {}
    for part, array in (("train", images.train), ("test", images.test)):
        lines[part] = f"{array.shape}, {array.dtype}, values 0 to {images.levels - 1}"
        lines[f"{part} sha256"] = sha256(array)
    for name, value in lines.items():
        console.print(f"{name:>12}  {value}", soft_wrap=True)
    return images


def fit(settings: FitSettings, console: Console) -> Fit:
    """Fit a mixed-effects model, print its table, and write its files."""
    from mlmcgrad.paper.experiments.folder import replaced  # not for --help

    held = nullcontext() if settings.out is None else replaced(settings, settings.out)
    with held, bars(console, "{task.fields[what]}") as bar:
        task = bar.add_task("fitting", total=None, what="")

        def show(step: FitStep) -> None:
            bar.update(task, what=step.text)

        with warnings.catch_warnings():
            # The table states the problem.
            warnings.simplefilter("ignore", mixed.ConvergenceWarning)
            result = mixed.fit(
                settings.formula,
                settings.data,
                settings.family,
                link=settings.link,
                seed=settings.seed,
                tolerance=settings.tolerance,
                iterations=settings.iterations,
                progress=show,
            )
        bar.stop()
        console.print(str(result), soft_wrap=True)
        if settings.out is not None:
            _write_fit(result, settings.out)
            console.print(f"files: {settings.out}", style="bold", soft_wrap=True)
    if result.live is not None and result.live.stopped is not None:
        raise result.live.stopped  # it knows which signal it was
    return result


def _write_fit(result: Fit, folder: Path) -> None:
    """Write the files of a fit, those with numbers before the figures.

    Labels that a spreadsheet would evaluate, such as =HYPERLINK(…), begin with an apostrophe.
    """
    import pandas as pd

    from mlmcgrad.mixed.formula import printable  # newlines too
    from mlmcgrad.paper.experiments.plots import save

    def cell(text: str) -> str:
        shown = printable(text)
        number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", shown)
        return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) and not number else shown

    result.save(folder / "fit.json")
    write_atomically(folder / "table.txt", f"{result}\n".encode())
    parts = []
    for f in result.factors:
        for i, term in enumerate(f.terms):
            columns = {"factor": f.name, "group": list(f.groups), "term": term}
            numbers = {"mean": f.mean[:, i].numpy(), "sd": f.sd[:, i].numpy()}
            parts.append(pd.DataFrame(columns | numbers))
    effects = pd.concat(parts)
    for name in ("factor", "group", "term"):
        effects[name] = effects[name].map(cell)
    write_atomically(folder / "random_effects.csv", effects.to_csv(index=False).encode())
    save(result.plot(), folder / "fit", formulas=True)


class LastingConsole(Console):
    """A console that does not end the command if the reader of a pipe has gone.

    What users name is data: it is printed as it is, not read as markup or by the terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text that is to be printed, alone or in a cell of a table."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        discard_output()


def parse(arguments: list[str]) -> tuple[str, Any]:
    """Return the name of the command and the settings that its options make."""
    # tyro makes twins that check nothing, so that `main` prints what settings refuse, in one line:
    # tyro would put it into a box, after the name of a class that no user knows.
    wanted = arguments[:1] if {"-h", "--help"} & set(arguments) else []
    twins: dict[str, Any] = {}
    for name, (kind, _) in COMMANDS.items():
        known = kind.__dataclass_fields__  # type: ignore[attr-defined]
        own = {
            "__post_init__": lambda _: None,
            "__doc__": _described(kind) if name in wanted else kind.__doc__,
            "__dataclass_fields__": {n: known[n] for n in sorted(known, key=_place)},
        }
        twins[name] = type(kind.__name__, (kind,), own)
    options: Any = tyro.extras.subcommand_cli_from_dict(
        twins,
        prog="mlmcgrad",
        description=_ABOUT,
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    (name,) = (name for name, twin in twins.items() if twin is type(options))
    values = {field: _expanded(value) for field, value in vars(options).items()}
    return name, COMMANDS[name][0](**values)


def _place(option: str) -> int:
    return 1 + _LAST.index(option) if option in _LAST else 0


def _described(kind: type) -> str:
    """Return the docstring of settings with the text of each option as one line.

    From attributes, tyro takes the line breaks of the source too.
    """
    from docstring_parser import parse_from_object

    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        texts |= {p.arg_name: p.description or "" for p in parse_from_object(each).params}
    lines = [f"    {name}: {' '.join(text.split())}" for name, text in texts.items()]
    return "\n".join([kind.__doc__ or "", "", "Args:", *lines])


def _expanded(value: Any) -> Any:
    """Return paths with the home folder for ~, which a shell leaves in --out=~/run."""
    from mlmcgrad.paper.datasets.dataset import expanded  # late, with NumPy: not for --help

    if isinstance(value, tuple):
        return tuple(map(_expanded, value))
    return expanded(value) if isinstance(value, Path) else value


def _no_memory(error: Exception) -> bool:
    """Return whether an allocation failed; on a CPU torch has no class of its own for that."""
    said = str(error).lower()
    overflow = "storage size calculation overflowed" in said
    return isinstance(error, MemoryError) or "tried to allocate" in said or overflow
