"""The command `mlmcgrad fit`: a mixed-effects model of a CSV file, as a table and as files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console

from mlmcgrad import mixed
from mlmcgrad.experiments.settings import SEEDS
from mlmcgrad.ranges import positive, whole
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.atomic import write_atomically
from mlmcgrad.runs.owner import Owner, check_same, held, write_config
from mlmcgrad.runs.progress import bars

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit as Result
    from mlmcgrad.mixed.result import Step

_FILES = ("fit.json", "table.txt", "random_effects.csv", "fit.png", "fit.svg")
_FREE = frozenset(("out", "force"))


@dataclass(frozen=True)
class Fit:
    """Fit a mixed-effects model: the maximum of its exact likelihood, with a certificate."""

    data: tyro.conf.Positional[Path]
    """CSV file with a header; rows with a missing value in a column of the formula are left out."""
    formula: tyro.conf.Positional[str]
    """For example "use ~ age + urban + (1 + urban | district)"; counts of successes as
    "y | trials(n) ~ …"."""
    family: Literal["bernoulli", "binomial", "poisson", "negative_binomial", "gaussian", "gamma"]
    """Law of the response."""
    link: Literal["logit", "probit", "cloglog"] | None = None
    """Of bernoulli and binomial; logit by default."""
    out: Path | None = None
    """Folder for the fit as fit.json, its table, random effects and figure; by default nothing is
    written."""
    force: bool = False
    """Move an earlier run in the folder aside, into old-1, old-2, …; nothing is deleted."""
    seed: int = 0
    """Everything random follows from it."""
    tolerance: float = 0.02
    """Largest Monte Carlo error of an estimate, in its standard errors."""
    iterations: int = 2000
    """At most so many; Ctrl-C before gives what there is."""

    def __post_init__(self) -> None:
        whole(self.seed, "seed", 0, SEEDS)
        positive(self.tolerance, "tolerance")
        whole(self.iterations, "iterations", 1, 2**31)
        if self.link is not None and self.family not in ("bernoulli", "binomial"):
            raise ValueError(
                f"link is for bernoulli and binomial only, got {self.link} for {self.family}; "
                "leave it out"
            )


def run(settings: Fit, console: Console) -> Result:
    """Fit, print the table, and write the files."""
    with _held(settings):
        found = _fit(settings, console)
        console.print(str(found), highlight=False, markup=False, soft_wrap=True)
        if settings.out is not None:
            _write(found, settings.out)
            line = f"files: {settings.out}"
            console.print(line, style="bold", highlight=False, markup=False, soft_wrap=True)
    if found.live is not None and found.live.stopped is not None:
        raise found.live.stopped  # it knows which signal it was
    return found


def _fit(settings: Fit, console: Console) -> Result:
    with bars(console, "{task.fields[what]}") as bar:
        task = bar.add_task("fitting", total=None, what="")

        def show(step: Step) -> None:
            known = step.noise < float("inf")
            error = f", error {step.noise:.3f} standard errors" if known else ""
            bar.update(task, what=f"iteration {step.iteration}: {step.text}{error}")

        return mixed.fit(
            settings.formula,
            settings.data,
            settings.family,
            link=settings.link,
            seed=settings.seed,
            tolerance=settings.tolerance,
            iterations=settings.iterations,
            progress=show,
        )


@contextmanager
def _held(settings: Fit) -> Iterator[None]:
    """Hold the folder, if there is one: a fit with the same settings is replaced."""
    if settings.out is None:
        yield
        return
    owner = Owner("fit", _FILES)
    with held(settings.out, owner, resume=not settings.force, force=settings.force) as before:
        if before:
            check_same(settings.out / records.CONFIG, before.get("settings"), settings, _FREE)
        write_config(settings.out, owner, settings=records.as_record(settings))
        yield


def _write(found: Result, folder: Path) -> None:
    """The files of a fit; fit.json last."""
    import pandas as pd

    parts = []
    for f in found.factors:
        for i, term in enumerate(f.terms):
            columns = {"factor": f.name, "group": list(f.groups), "term": term}
            numbers = {"mean": f.mean[:, i].numpy(), "sd": f.sd[:, i].numpy()}
            parts.append(pd.DataFrame(columns | numbers))
    write_atomically(folder / "random_effects.csv", pd.concat(parts).to_csv(index=False).encode())
    write_atomically(folder / "table.txt", f"{found}\n".encode())
    figure = found.plot()
    for name in ("fit.png", "fit.svg"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=name[-3:], dpi=160)
        write_atomically(folder / name, buffer.getvalue())
    found.save(folder / "fit.json")
