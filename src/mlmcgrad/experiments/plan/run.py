"""Plan the decoder's gradient for the model in the last checkpoint of a training, and compare.

A pilot of i-SIR and one of importance sampling predict what every estimator would do
(`diagnostics.plan`). The better plan is then simulated beside IWAE, BR-IWAE and the run's own
method (`diagnostics.compare`). The training itself is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from mlmcgrad.diagnostics import Comparison, compare
from mlmcgrad.diagnostics.choice import Choice, describe
from mlmcgrad.diagnostics.planning import plan
from mlmcgrad.estimators import Average
from mlmcgrad.experiments.plan.contenders import (
    Images,
    contenders,
    gradient,
    images,
    kernels,
    starts,
)
from mlmcgrad.experiments.plan.findings import summarise
from mlmcgrad.experiments.plan.settings import FILES, Plan
from mlmcgrad.experiments.plots import save
from mlmcgrad.runs import folder as records
from mlmcgrad.runs.owner import Owner, check_same, held, write_config
from mlmcgrad.runs.progress import bars
from mlmcgrad.runs.workers import threads
from mlmcgrad.seeds import seed_for
from mlmcgrad.training.device import flushed
from mlmcgrad.training.saved import saved
from mlmcgrad.training.trainer import Trainer

OWNER = Owner("plan", FILES)
_BATCHES = 200
_DECADES = range(-3, 3)  # of the budget, in which errors are compared
_MOST_SHARE = 0.5  # of a budget, for its pilot


def run(settings: Plan, console: Console) -> dict[str, Any]:
    """Plan, compare, print and write; returns the contents of summary.json."""
    trainer = saved(settings.run)
    with threads(trainer.settings.threads), flushed(), _held(settings):
        shown = images(trainer, settings.rows, settings.seed)
        with bars(console) as progress:
            plans = _plans(trainer, shown, settings, progress)
            chosen = min(plans, key=lambda name: plans[name].best.error(settings.budget))
            comparison = _compare(trainer, shown, plans[chosen], chosen, settings, progress)
        for name, choice in plans.items():
            _print(console, f"{_TITLES[name]}. {choice}\n")
        _print(console, f"{comparison}\n")
        summary = summarise(
            plans,
            chosen,
            comparison,
            run=str(settings.run),
            iteration=trainer.iteration,
            parameters=sum(p.numel() for p in trainer.model.decoder.parameters()),
            rows=settings.rows,
        )
        save(plans[chosen].plot(), settings.folder / "plan")
        save(comparison.plot(), settings.folder / "compare")
        records.write_json(settings.folder / records.SUMMARY, summary)
    best = f"{describe(plans[chosen].estimator)} by {_TITLES[chosen]}"
    first, *others = comparison.best(settings.budget) or ("nobody",)
    as_good = f", {' and '.join(others)} may be as good" if others else ""
    _print(console, f"planned for iteration {trainer.iteration}: {best}")
    _print(console, f"measured at {settings.budget:g} evaluations: best is {first}{as_good}")
    _print(console, f"files: {settings.folder}")
    return summary


_TITLES = {"isir": "i-SIR", "importance": "Importance sampling"}


def _plans(
    trainer: Trainer, shown: Images, settings: Plan, progress: Progress
) -> dict[str, Choice]:
    """A plan for each kernel."""
    k, found = trainer.settings.candidates, {}
    usual = min(_BATCHES * trainer.settings.batch_size, int(settings.budget / (4 * k)))
    simulations = max(1, usual) if settings.simulations is None else settings.simulations
    for name, kernel in kernels(trainer).items():
        found[name] = plan(
            gradient(trainer, kernel, Average(1)),
            None,
            *shown.context,
            budget=settings.budget,
            simulations=simulations,
            iteration=max(1, trainer.iteration),
            generator=_generator(trainer, settings, name),
            share=min(_MOST_SHARE, settings.evaluations / settings.budget),
            report=_shown(progress, f"pilot of {_TITLES[name]}"),
        )
    return found


def _compare(
    trainer: Trainer, shown: Images, choice: Choice, kernel: str, settings: Plan, progress: Progress
) -> Comparison:
    """The plan beside the usual methods and that of the run."""
    generator = _generator(trainer, settings, "compare")
    every = contenders(trainer)
    every["planned"] = gradient(trainer, kernels(trainer)[kernel], choice.estimator)
    x0 = dict.fromkeys(every)
    if "this run" in every:
        x0["this run"] = starts(trainer, shown, generator)
    return compare(
        every,
        x0,
        *shown.context,
        evaluations=settings.evaluations,
        budgets=[settings.budget * 10.0**decade for decade in _DECADES],
        n=max(1, trainer.iteration),
        generator=generator,
        report=_shown(progress, "comparison"),
    )


def _shown(progress: Progress, what: str) -> Callable[[float], None]:
    """A bar for what takes a while."""
    task = progress.add_task(what, total=1.0)
    return lambda share: progress.update(task, completed=share)


def _generator(trainer: Trainer, settings: Plan, purpose: str) -> torch.Generator:
    return torch.Generator(trainer.device).manual_seed(seed_for(settings.seed, purpose))


@contextmanager
def _held(settings: Plan) -> Iterator[None]:
    """Hold the folder: a plan with the same settings is replaced."""
    folder = settings.folder
    with held(folder, OWNER, resume=not settings.force, force=settings.force) as before:
        if before:
            path = folder / records.CONFIG
            check_same(path, before.get("settings"), settings, ("out", "force"))
        write_config(folder, OWNER, settings=records.as_record(settings))
        (folder / records.SUMMARY).unlink(missing_ok=True)  # until this one is complete
        yield


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
