"""Is `plan.schedule` a good T_n? Trainings at equal evaluations, against fixed T and T_n = √n.

On bars and stripes (exact likelihoods of a Boltzmann machine with 16 hidden units, six Gibbs chains
from each picture, step size 0.1), with a small budget and a larger one, and on a mixed model
(likelihood by quadrature, levels of importance sampling). The schedule starts with single steps and
is planned when 5 % of the evaluations are spent and anew at 20 %, by pilots of 3 % of them each,
which are counted. Fixed T and √n are those of the same estimator, the planned one; its T = 1 is a
single step. What counts is the log-likelihood of the averaged iterate when the evaluations are
spent.
`python -m benchmarks.schedule` goes on with what is in schedule.json, and writes schedule.md.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch
from rich.progress import Progress
from scipy.special import stdtrit
from torch import Tensor

import mlmcgrad as mg
from benchmarks.planner_problems import mixed_model
from mlmcgrad import diagnostics, schedules
from mlmcgrad.diagnostics.truncations import Truncations
from mlmcgrad.estimators import Average, Estimator
from mlmcgrad.experiments.boltzmann.exact import log_likelihood
from mlmcgrad.experiments.boltzmann.pictures import pictures
from mlmcgrad.experiments.boltzmann.settings import HIDDEN, SCALE
from mlmcgrad.kernels import Gibbs
from mlmcgrad.runs.pool import one_thread

FIXED = (1, 8, 32, 128)
PLANNED = "plan.schedule"
_LATE = 3.0  # η of the averages, as in `mlmcgrad boltzmann`
_WHEN = (0.05, 0.2)  # shares of the evaluations after which a plan is made
_PILOT = 0.03  # share of them that each may spend


class Seed(TypedDict):
    """What is kept of one seed."""

    schedule: str
    log_likelihood: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained: where a gradient is, and how good parameters are."""

    gradient: mg.MarkovGradient
    parameters: list[Tensor]
    x0: Tensor | None
    context: tuple[Tensor, ...]
    exact_part: Callable[[], None]  # adds what needs no chain to `.grad`
    whole: mg.MarkovGradient  # with that part in its loss, for plans
    data: tuple[Tensor, ...]  # its context
    quality: Callable[[list[Tensor]], float]
    budget: float  # evaluations
    step_size: float = 0.1

    def run(
        self, estimator: Estimator | None, rng: torch.Generator
    ) -> tuple[float, list[diagnostics.Choice]]:
        """Train, by plans if there is no estimator: the averaged iterate's quality, and plans."""
        gradient = dataclasses.replace(self.gradient, estimator=estimator or Average(1))
        optimizer = torch.optim.SGD(self.parameters, lr=self.step_size)
        mean = [p.detach().clone() for p in self.parameters]
        n, spent, plans = 0, 0, list[diagnostics.Choice]()
        while spent < self.budget:
            made = len(plans)
            if estimator is None and made < len(_WHEN) and spent >= _WHEN[made] * self.budget:
                plans.append(self.plan(n, plans[-1].schedule if plans else None, rng))
                spent += plans[-1].decay.pilot.evaluations
                gradient = dataclasses.replace(gradient, estimator=plans[-1].scheduled)
            n += 1
            optimizer.zero_grad()
            self.exact_part()
            spent += gradient.backward(self.x0, *self.context, n=n, generator=rng).evaluations
            optimizer.step()
            for m, p in zip(mean, self.parameters, strict=True):
                m.lerp_(p.detach(), (_LATE + 1.0) / (n + _LATE))
        return self.quality(mean), plans

    def plan(self, n: int, after: Truncations | None, rng: torch.Generator) -> diagnostics.Choice:
        """For simulations of eight steps on average."""
        chains = self.whole.kernel.chains(self.x0, self.data)
        return diagnostics.plan(
            self.whole,
            self.x0,
            *self.data,
            budget=self.budget,
            simulations=int(self.budget / 8) // chains * chains,
            iteration=n,
            after=after,
            share=_PILOT,
            generator=rng,
        )


def boltzmann(seed: int, steps: float) -> Training:
    """Bars and stripes, 192 chains."""
    pictured = pictures("bars")
    rows = pictured.repeat(6, 1)
    machine = Gibbs.of_size(
        rows.shape[1], HIDDEN, scale=SCALE, generator=torch.Generator().manual_seed(seed)
    )

    def loss(v: Tensor, data: Tensor) -> Tensor:
        return machine.free_energy(data) - machine.free_energy(v)

    return Training(
        mg.MarkovGradient(
            machine, machine.loss, Average(1), parameters=machine.parameters, chunk=2**13
        ),
        list(machine.parameters),
        rows,
        (),
        lambda: machine.free_energy(pictured).mean().backward(),
        mg.MarkovGradient(machine, loss, Average(1), parameters=machine.parameters),
        (rows,),
        lambda mean: len(pictured) * log_likelihood(Gibbs(*mean), pictured),
        steps * len(rows),
    )


def mixed(seed: int) -> Training:
    """Logistic regression with a random intercept of 24 groups."""
    model = mixed_model(start=(0.0, 0.0, 0.0))
    return Training(
        model.gradient,
        [model.theta],
        None,
        model.context,
        lambda: None,
        model.gradient,
        model.context,
        lambda mean: len(model.context[0]) * model.log_likelihood(mean[0]),
        1.5e5,
    )


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is trained, with how many seeds, and fixed T that it is compared with."""

    make: Callable[[int], Training]
    seeds: int
    fixed: tuple[int, ...] = FIXED


PROBLEMS: dict[str, Problem] = {
    "bars and stripes, 6000 Gibbs steps a chain": Problem(partial(boltzmann, steps=6e3), 3),
    # T = 1 takes as long there as all others together, and becomes worse from 6000 steps on.
    "bars and stripes, 15 000 Gibbs steps a chain": Problem(
        partial(boltzmann, steps=1.5e4), 3, FIXED[1:]
    ),
    "mixed model, 150 000 evaluations": Problem(mixed, 8),
}


def train(problem: Problem, seed: int) -> Seed:
    """All methods with one seed."""
    quality, plans = problem.make(seed).run(None, torch.Generator().manual_seed(seed))
    family, found = plans[-1].scheduled, {PLANNED: quality}
    lengths: dict[str, float | schedules.Schedule] = {f"T = {t}": float(t) for t in problem.fixed}
    for label, truncation in {**lengths, "T = √n": schedules.power(1.0, 0.5)}.items():
        field = "length" if isinstance(family, Average) else "truncation"
        other = dataclasses.replace(family, **{field: truncation})  # type: ignore[type-var]
        found[label], _ = problem.make(seed).run(other, torch.Generator().manual_seed(seed))
    words = f"{type(family).__name__}, " + "; then ".join(str(p.schedule) for p in plans)
    return {"schedule": words, "log_likelihood": found}


def markdown(name: str, seeds: list[Seed]) -> str:
    """A table with paired intervals of the differences from the schedule."""
    lines = [
        f"{name}, {len(seeds)} seeds; of the last: {seeds[-1]['schedule']}",
        "",
        "| T_n | log-likelihood | schedule − this, 95 % interval |",
        "|---|---|---|",
    ]
    for label in seeds[0]["log_likelihood"]:
        x = torch.tensor([seed["log_likelihood"][label] for seed in seeds], dtype=torch.float64)
        if label == PLANNED:
            lines.append(f"| {label} | {x.mean():.3f} | |")
            mine = x
            continue
        mean, sd = (mine - x).mean(), (mine - x).std()
        half = float(stdtrit(len(x) - 1, 0.975) * sd) / math.sqrt(len(x))
        interval = f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"
        lines.append(f"| {label} | {x.mean():.3f} | {interval} |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Run the named problems, or all; seeds that are in schedule.json are not run again."""
    path = Path(__file__).resolve().parent / "schedule.json"
    found: dict[str, list[Seed]] = json.loads(path.read_text()) if path.exists() else {}
    with one_thread(), Progress() as progress:
        for name in names or PROBLEMS:
            done = found.setdefault(name, [])
            for seed in progress.track(range(len(done), PROBLEMS[name].seeds), description=name):
                done.append(train(PROBLEMS[name], seed))
                path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    tables = [markdown(name, found[name]) for name in PROBLEMS if len(found.get(name, [])) > 1]
    path.with_suffix(".md").write_text("\n".join(tables), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
