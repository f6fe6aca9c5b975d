"""Plan the decoder's gradient for the model in the last checkpoint of a training, and compare.

The parameters are averages of the iterates (`optim.Averaged`): at a single iterate of a large step
size the gradient is mostly the noise of that iterate.

A pilot of i-SIR and one of importance sampling predict the error of every estimator
(`diagnostics.plan`). The better plan is then simulated beside three others (`diagnostics.compare`):

    IWAE       one block of k draws;
    BR-IWAE    the average of a chain of i-SIR of T_n steps;
    this run   its method, with T_n at its last iteration.

All of them estimate −∇_θ log p_θ(y) = −E_{p_θ(z|y)}[∇_θ log p_θ(y, z)]. The training itself is not
changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from mlmcgrad.diagnostics import Comparison, Plan, compare, describe, plan
from mlmcgrad.distributed.world import seed_for
from mlmcgrad.estimators import Average, Estimator
from mlmcgrad.gradient import MarkovGradient
from mlmcgrad.iwae.proposal import complete
from mlmcgrad.kernels import ISIR, Importance, Kernel
from mlmcgrad.kernels.base import Context, Pieces, Start
from mlmcgrad.lengths import Lengths
from mlmcgrad.paper.experiments.folder import replaced
from mlmcgrad.paper.experiments.plots import print_text, save
from mlmcgrad.paper.experiments.settings import PlanSettings
from mlmcgrad.paper.runs import folder as records
from mlmcgrad.paper.runs.process import bars, threads
from mlmcgrad.paper.training.loop import read_trainer
from mlmcgrad.paper.training.trainer import Trainer, usual_numbers

_TITLES = {"isir": "i-SIR", "importance": "Importance sampling"}
_BATCHES = 200
_DECADES = range(-3, 3)  # of the budget, in which errors are compared
_MOST_SHARE = 0.5  # of a budget, for its pilot


def run(settings: PlanSettings, console: Console) -> dict[str, Any]:
    """Plan, compare, print and write; returns the contents of summary.json."""
    trainer = read_trainer(settings.run)
    with (
        threads(trainer.settings.threads),
        usual_numbers(),
        replaced(settings, settings.folder),
        trainer.averaged.applied(),
    ):
        shown = images(trainer, settings.rows, settings.seed)
        with bars(console) as progress:
            plans = _plans(trainer, shown, settings, progress)
            chosen = min(plans, key=lambda name: plans[name].best.error(settings.budget))
            comparison = _compare(trainer, shown, plans[chosen], chosen, settings, progress)
        for name, choice in plans.items():
            print_text(f"{_TITLES[name]}. {choice}\n", console)
        print_text(f"{comparison}\n", console)
        summary = {
            "run": str(settings.run),
            "iteration": trainer.iteration,
            "parameters": sum(p.numel() for p in trainer.model.decoder.parameters()),
            "rows": settings.rows,
            "kernel": chosen,
            "estimator": describe(plans[chosen].estimator),
            "best": list(comparison.best(settings.budget)),
            "plans": {name: _record(choice) for name, choice in plans.items()},
            "comparison": comparison.record(),
        }
        records.write_json(settings.folder / records.SUMMARY, summary)
        save(plans[chosen].plot(), settings.folder / "plan", formulas=True)
        save(comparison.plot(), settings.folder / "compare", formulas=True)
    best = f"{describe(plans[chosen].estimator)} by {_TITLES[chosen]}"
    first, *others = comparison.best(settings.budget) or ("none",)
    as_good = f", {' and '.join(others)} may be as good" if others else ""
    where = f"iteration {trainer.iteration}, at averaged parameters"
    print_text(f"planned for {where}: {best}", console)
    print_text(f"measured at {settings.budget:g} evaluations: best is {first}{as_good}", console)
    print_text(f"files: {settings.folder}", console)
    return summary


def _plans(
    trainer: Trainer, shown: Images, settings: PlanSettings, progress: Progress
) -> dict[str, Plan]:
    """Return a plan for each kernel."""
    k, plans = trainer.settings.candidates, {}
    usual = min(_BATCHES * trainer.settings.batch_size, int(settings.budget / (4 * k)))
    simulations = max(1, usual) if settings.simulations is None else settings.simulations
    for name, kernel in kernels(trainer).items():
        plans[name] = plan(
            gradient(trainer, kernel, Average(1)),
            None,
            *shown.context,
            budget=settings.budget,
            pilot=min(_MOST_SHARE * settings.budget, settings.pilot),
            simulations=simulations,
            iteration=max(1, trainer.iteration),
            generator=_generator(trainer, settings, name),
            report=_bar(progress, f"pilot of {_TITLES[name]}"),
        )
    return plans


def _compare(
    trainer: Trainer,
    shown: Images,
    choice: Plan,
    kernel: str,
    settings: PlanSettings,
    progress: Progress,
) -> Comparison:
    """Compare the plan with the usual methods and that of the run."""
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
        evaluations=settings.pilot,
        budgets=[settings.budget * 10.0**decade for decade in _DECADES],
        n=max(1, trainer.iteration),
        generator=generator,
        report=_bar(progress, "comparison"),
    )


def _bar(progress: Progress, what: str) -> Callable[[float], None]:
    """Add a progress bar; return the function that moves it."""
    task = progress.add_task(what, total=1.0)
    return lambda share: progress.update(task, completed=share)


def _generator(trainer: Trainer, settings: PlanSettings, purpose: str) -> torch.Generator:
    return torch.Generator(trainer.device).manual_seed(seed_for(settings.seed, purpose))


@dataclass(frozen=True)
class Images:
    """Training images to simulate, and their context: y, mean and log scale of q."""

    rows: Tensor
    context: tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class FromProposal:
    """A kernel whose chains start from draws of the proposal q."""

    kernel: Kernel
    propose: Any

    def chains(self, x0: Start, context: Context) -> int:
        """Return one chain per image."""
        return len(context[0]) if x0 is None else self.kernel.chains(x0, context)

    def run(
        self, x0: Start, context: Context, lengths: Lengths, generator: torch.Generator
    ) -> Pieces:
        """Run the kernel from x0, or from draws of q if there is none."""
        if x0 is None:
            x0 = self.propose(len(lengths.levels), *context, generator=generator)
        return (yield from self.kernel.run(x0, context, lengths, generator))


def images(trainer: Trainer, count: int, seed: int) -> Images:
    """Return `count` random training images, the same on every device."""
    available = len(trainer.source.train)
    if count > available:
        raise ValueError(f"rows must be ≤ {available}, the number of images, got {count}")
    generator = torch.Generator().manual_seed(seed_for(seed, "rows"))
    rows = torch.randperm(available, generator=generator)[:count]
    y = trainer.source.batch(rows.numpy(), trainer.device, generator)
    with torch.no_grad():
        mean, log_scale = trainer.model.encoder(y)
    return Images(rows, (y, mean, log_scale))


def kernels(trainer: Trainer) -> dict[str, Kernel]:
    """Return the kernels that sample p(z | y), with the number of candidates of the run."""
    model, k, chunk = trainer.model, trainer.settings.candidates, trainer.settings.chunk
    return {
        "isir": ISIR(model.log_weight, model.propose, max(2, k), chunk=chunk),
        "importance": Importance(model.log_weight, model.propose, k, chunk=chunk),
    }


def gradient(trainer: Trainer, kernel: Kernel, estimator: Estimator) -> MarkovGradient:
    """Return the decoder's gradient by a kernel and an estimator."""
    model = trainer.model
    return MarkovGradient(
        kernel,
        lambda z, y, *_: -model.log_joint(z, y),
        estimator,
        parameters=tuple(model.decoder.parameters()),
        chunk=trainer.settings.chunk,
    )


def contenders(trainer: Trainer) -> dict[str, MarkovGradient]:
    """Return IWAE, BR-IWAE and the run's own method, if it is neither."""
    settings, objective, usual = trainer.settings, trainer.objective, kernels(trainer)
    n = max(1, trainer.iteration)
    longest = settings.truncation_scale * n**settings.truncation_exponent
    every = {
        "IWAE": gradient(trainer, usual["importance"], Average(1)),
        "BR-IWAE": gradient(trainer, usual["isir"], Average(max(2, math.floor(longest)))),
    }
    plain = settings.kernel in ("isir", "importance") and not settings.rao_blackwell
    if settings.method == "mlmc" or trainer.store is not None or not plain:
        kernel = objective.sampler
        if not isinstance(kernel, ISIR | Importance):
            kernel = FromProposal(kernel, trainer.model.propose)
        every["this run"] = gradient(trainer, kernel, objective.estimator)
    return every


def starts(trainer: Trainer, shown: Images, generator: torch.Generator) -> Tensor | None:
    """Return the last states of the run's persistent chains; None if its chains restart."""
    if trainer.store is None:
        return None
    y = shown.context[0]
    drawn = trainer.model.propose(len(y), *shown.context, generator=generator)
    return complete(trainer.store.start(shown.rows), drawn)


def _record(choice: Plan) -> dict[str, Any]:
    names = ("verdict", "error", "known", "crossover", "budget", "simulations")
    record = {name: getattr(choice, name) for name in names}
    return {
        **record,
        "estimator": describe(choice.estimator),
        "schedule": str(choice.schedule),
        "warnings": list(choice.warnings),
        "crossover": choice.crossover if math.isfinite(choice.crossover) else None,
        "candidates": [
            {
                "estimator": describe(each.estimator),
                "bias2": each.bias.value,
                "bias2_se": each.bias.se,
                "variance": each.variance,
                "cost": each.cost,
                "error": math.sqrt(each.error(choice.budget)),
            }
            for each in choice.shown()
        ],
    }
