"""Is `plan.schedule` a good T_n? Trainings at equal evaluations, against fixed T and T_n = √n.

On bars and stripes (exact likelihoods of a Boltzmann machine with 16 hidden units, Gibbs steps from
the data) and on a mixed model (likelihood by quadrature, levels of importance sampling). A plan is
made where a short training with single steps ends; its estimator is used with its schedule, with
T = 1, 8, 32 and 128 and with √n. What counts is the log-likelihood of the averaged iterate when the
evaluations are spent. `python -m benchmarks.schedule` writes schedule.md.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.progress import Progress
from scipy.special import stdtrit
from torch import Tensor

import mlmcgrad as mg
from benchmarks.planner_problems import mixed_model
from mlmcgrad import diagnostics, schedules
from mlmcgrad.estimators import MLMC, Average, Estimator
from mlmcgrad.experiments.boltzmann.exact import log_likelihood
from mlmcgrad.experiments.boltzmann.pictures import pictures
from mlmcgrad.experiments.boltzmann.settings import HIDDEN, SCALE
from mlmcgrad.kernels import Gibbs
from mlmcgrad.runs.pool import one_thread

FIXED = (1, 8, 32, 128)
_LATE = 3.0  # η of the averages, as in `mlmcgrad boltzmann`


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained: where a gradient is, and how good parameters are."""

    gradient: mg.MarkovGradient
    parameters: list[Tensor]
    start: Callable[[torch.Generator], tuple[Tensor | None, tuple[Tensor, ...]]]
    exact_part: Callable[[], None]  # adds what needs no chain to `.grad`
    quality: Callable[[list[Tensor]], float]
    step_size: float
    budget: float  # evaluations

    def run(self, estimator: Estimator, budget: float, rng: torch.Generator) -> float:
        """Train, and return the quality of the averaged iterate."""
        gradient = dataclasses.replace(self.gradient, estimator=estimator)
        optimizer = torch.optim.SGD(self.parameters, lr=self.step_size)
        mean = [p.detach().clone() for p in self.parameters]
        n, spent = 0, 0
        while spent < budget:
            n += 1
            optimizer.zero_grad()
            self.exact_part()
            x0, context = self.start(rng)
            spent += gradient.backward(x0, *context, n=n, generator=rng).evaluations
            optimizer.step()
            for m, p in zip(mean, self.parameters, strict=True):
                m.lerp_(p.detach(), (_LATE + 1.0) / (n + _LATE))
        return self.quality(mean)


def boltzmann(seed: int) -> Training:
    """Bars and stripes, 200 chains."""
    rows, chains = pictures("bars"), 200
    machine = Gibbs.of_size(
        rows.shape[1], HIDDEN, scale=SCALE, generator=torch.Generator().manual_seed(seed)
    )

    def start(rng: torch.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        return rows[torch.randint(len(rows), (chains,), generator=rng)], ()

    return Training(
        mg.MarkovGradient(
            machine, machine.loss, Average(1), parameters=machine.parameters, chunk=2**13
        ),
        list(machine.parameters),
        start,
        lambda: machine.free_energy(rows).mean().backward(),
        lambda mean: len(rows) * log_likelihood(Gibbs(*mean), rows),
        0.1,
        6e3 * chains,
    )


def mixed(seed: int) -> Training:
    """Logistic regression with a random intercept of 24 groups."""
    model = mixed_model(start=(0.0, 0.0, 0.0))

    def start(rng: torch.Generator) -> tuple[None, tuple[Tensor, ...]]:
        return None, model.context

    return Training(
        model.gradient,
        [model.theta],
        start,
        lambda: None,
        lambda mean: len(model.context[0]) * model.log_likelihood(mean[0]),
        0.1,
        1.5e5,
    )


PROBLEMS: dict[str, tuple[Callable[[int], Training], int]] = {
    "bars and stripes": (boltzmann, 5),
    "mixed model": (mixed, 8),
}


def planned(make: Callable[[int], Training], seed: int) -> diagnostics.Choice:
    """A plan where a short training ends."""
    task, rng = make(seed), torch.Generator().manual_seed(10_000 + seed)
    task.run(Average(1), 0.05 * task.budget, rng)
    x0, context = task.start(rng)
    chains = task.gradient.kernel.chains(x0, context)
    return diagnostics.plan(
        task.gradient,
        x0,
        *context,
        budget=task.budget,
        simulations=int(task.budget / 8) // chains * chains,
        generator=rng,
    )


def compare(name: str) -> tuple[str, dict[str, list[float]]]:
    """Final log-likelihoods by method, and the schedule of the first seed."""
    make, seeds = PROBLEMS[name]
    found: dict[str, list[float]] = {}
    words = ""
    for seed in range(seeds):
        choice = planned(make, seed)
        family = choice.multi.estimator if choice.multi is not None else MLMC(2)
        words = words or f"{diagnostics.describe(family)}; {choice.schedule}"
        methods: dict[str, Estimator] = {
            "plan.schedule": choice.scheduled,
            **{f"T = {t}": _with(family, float(t)) for t in FIXED},
            "T = √n": _with(family, schedules.power(1.0, 0.5)),
        }
        for label, estimator in methods.items():
            task = make(seed)
            rng = torch.Generator().manual_seed(seed)
            found.setdefault(label, []).append(task.run(estimator, task.budget, rng))
    return words, found


def _with(family: Estimator, truncation: float | schedules.Schedule) -> Estimator:
    return dataclasses.replace(family, truncation=truncation)  # type: ignore[type-var]


def markdown(name: str, words: str, found: dict[str, list[float]]) -> str:
    """A table with paired intervals of the differences from the schedule."""
    lines = [
        f"{name}, {len(found['plan.schedule'])} seeds; seed 0: {words}",
        "",
        "| T_n | log-likelihood | schedule − this, 95 % interval |",
        "|---|---|---|",
    ]
    mine = torch.tensor(found["plan.schedule"], dtype=torch.float64)
    for label, values in found.items():
        x = torch.tensor(values, dtype=torch.float64)
        difference = mine - x
        half = float(stdtrit(len(x) - 1, 0.975) * difference.std()) / math.sqrt(len(x))
        cell = (
            ""
            if label == "plan.schedule"
            else f"{difference.mean():+.3f} ({difference.mean() - half:+.3f} to "
            f"{difference.mean() + half:+.3f})"
        )
        lines.append(f"| {label} | {x.mean():.3f} | {cell} |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Run the named problems, or all."""
    texts = []
    with one_thread(), Progress() as progress:
        for name in progress.track(names or list(PROBLEMS), description="trainings"):
            texts.append(markdown(name, *compare(name)))
            print(texts[-1], flush=True)
    if not names:
        path = Path(__file__).resolve().parent / "schedule.md"
        path.write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
