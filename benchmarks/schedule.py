"""Is `plan.schedule` a good T_n? Trainings at equal evaluations, against fixed T and T_n = √n.

On bars and stripes (exact likelihoods of a Boltzmann machine with 16 hidden units, six Gibbs chains
from each picture, step size 0.1), with a small budget and a larger one, and on a mixed model
(likelihood by quadrature, levels of importance sampling). The schedule waits with
`MLMCSum(√n, 2**-1.5)`, and is planned once, when a tenth of the evaluations are spent, by a pilot
of 1 % of them, which is counted. What it is compared with:

- fixed T and √n with the planned estimator that begins with a single step; its T = 1 is one step;
- √n with what the schedule waits with;
- √n as in the paper, `MLMC(√n)`: what one has without a plan.

What counts is the log-likelihood of the averaged iterate when the evaluations are spent. When to
plan, and the share of the pilot, were chosen with seeds from 100 on, which are not among these.
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

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from scipy.optimize import minimize
from scipy.special import stdtrit
from torch import Tensor

import mlmcgrad as mg
from benchmarks.planner_problems import mixed_model
from mlmcgrad import diagnostics, schedules
from mlmcgrad.diagnostics import describe
from mlmcgrad.estimators import MLMC, Average, Estimator, MLMCSum
from mlmcgrad.kernels import Gibbs
from mlmcgrad.paper.experiments.boltzmann import HIDDEN, SCALE, log_likelihood, pictures
from mlmcgrad.paper.runs.process import threads

FIXED = (1, 8, 32, 128)
PLANNED = "plan.schedule"
_LATE = 3.0  # η of the averages, as in `mlmcgrad boltzmann`
_WHEN = 0.1  # share of the evaluations after which the plan is made
_PILOT = 0.01  # share of them that it may spend
_AGAIN = 2  # times the iterations until the plan there are at least
_ROOT = schedules.power(1.0, 0.5)
_WAITING = MLMCSum(_ROOT, 2.0**-1.5)


class Seed(TypedDict):
    """What is kept of one seed."""

    schedule: str
    family: str  # of the other T_n
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
    ) -> tuple[float, diagnostics.Plan | None]:
        """Train, by a plan if there is no estimator: the averaged iterate's quality, the plan."""
        gradient = dataclasses.replace(self.gradient, estimator=estimator or _WAITING)
        optimizer = torch.optim.SGD(self.parameters, lr=self.step_size)
        mean = [p.detach().clone() for p in self.parameters]
        n, spent, plan = 0, 0, None
        while spent < self.budget:
            if estimator is None and plan is None and spent >= _WHEN * self.budget:
                plan = self.plan(n, rng)
                spent += plan.decay.pilot.evaluations
                gradient = dataclasses.replace(gradient, estimator=plan.scheduled)
            n += 1
            optimizer.zero_grad()
            self.exact_part()
            spent += gradient.backward(self.x0, *self.context, n=n, generator=rng).evaluations
            optimizer.step()
            for m, p in zip(mean, self.parameters, strict=True):
                m.lerp_(p.detach(), (_LATE + 1.0) / (n + _LATE))
        return self.quality(mean), plan

    def plan(self, n: int, rng: torch.Generator) -> diagnostics.Plan:
        """For at least twice the iterations until now."""
        return diagnostics.plan(
            self.whole,
            self.x0,
            *self.data,
            budget=self.budget,
            simulations=_AGAIN * n * self.whole.kernel.chains(self.x0, self.data),
            iteration=n,
            after=_ROOT,
            pilot=_PILOT * self.budget,
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


def maximum() -> float:
    """Of the log-likelihood of the mixed model."""
    model = mixed_model(start=(0.0, 0.0, 0.0))

    def minus(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        with torch.no_grad():
            model.theta.copy_(torch.from_numpy(x))
        return -model.log_likelihood(model.theta.detach()), model.limit().numpy()

    found = minimize(minus, np.zeros(3), jac=True, method="BFGS", options={"gtol": 1e-9})
    return -len(model.context[0]) * float(found.fun)


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is trained, with how many seeds, and fixed T that it is compared with.

    Of `best`, the largest log-likelihood there is, the table has what is lost.
    """

    make: Callable[[int], Training]
    seeds: int
    fixed: tuple[int, ...] = FIXED
    best: Callable[[], float] | None = None


PROBLEMS: dict[str, Problem] = {
    "bars and stripes, 6000 Gibbs steps a chain": Problem(partial(boltzmann, steps=6e3), 5),
    # T = 1 takes as long there as all others together, and becomes worse from 6000 steps on.
    "bars and stripes, 15 000 Gibbs steps a chain": Problem(
        partial(boltzmann, steps=1.5e4), 3, FIXED[1:]
    ),
    "mixed model, 150 000 evaluations": Problem(mixed, 48, best=maximum),
}


def family(plan: diagnostics.Plan) -> Estimator:
    """The best of those that begin with a single step, for the way that is left."""
    left = plan.chains * plan.iteration * plan.decay.mean_square(0)
    single = [
        each
        for each in plan.candidates
        if getattr(each.estimator, "base", 1) == 1 and not getattr(each.estimator, "burn_in", 0)
    ]
    best = min(single, key=lambda c: c.bias.value + c.cost * (c.variance + left) / plan.budget)
    return best.estimator


def train(problem: Problem, seed: int) -> Seed:
    """All methods with one seed."""
    quality, plan = problem.make(seed).run(None, torch.Generator().manual_seed(seed))
    assert plan is not None
    planned, found = family(plan), {PLANNED: quality}
    field = "length" if isinstance(planned, Average) else "truncation"
    lengths: dict[str, float | schedules.Schedule] = {f"T = {t}": float(t) for t in problem.fixed}
    methods: dict[str, Estimator] = {
        label: dataclasses.replace(planned, **{field: length})  # type: ignore[type-var]
        for label, length in {**lengths, "T = √n": _ROOT}.items()
    }
    methods |= {"MLMCSum(√n, 0.354)": _WAITING, "MLMC(√n)": MLMC(_ROOT)}
    for label, estimator in methods.items():
        found[label], _ = problem.make(seed).run(estimator, torch.Generator().manual_seed(seed))
    steps = plan.scheduled.steps
    words = "; ".join([f"{describe(e)} from n = {max(n, plan.iteration)}" for n, e in steps[:3]])
    return {"schedule": words, "family": describe(planned), "log_likelihood": found}


def markdown(name: str, problem: Problem, seeds: list[Seed]) -> str:
    """A table with paired intervals of the differences from the schedule."""
    best, digits = (None, 3) if problem.best is None else (problem.best(), 5)
    of = "log-likelihood" if best is None else f"lost of the maximum, {best:.4f}"
    gain = "schedule − this" if best is None else "this − schedule"
    lines = [
        f"{name}, {len(seeds)} seeds; of the last: {seeds[-1]['schedule']}, …; the other T_n with "
        f"the family of {seeds[-1]['family']}",
        "",
        f"| T_n | {of} | {gain}, 95 % interval |",
        "|---|---|---|",
    ]
    for label in seeds[0]["log_likelihood"]:
        x = torch.tensor([seed["log_likelihood"][label] for seed in seeds], dtype=torch.float64)
        shown = float(x.mean() if best is None else best - x.mean())
        if label == PLANNED:
            lines.append(f"| {label} | {shown:.{digits}f} | |")
            mine = x
            continue
        mean, sd = (mine - x).mean(), (mine - x).std()
        half = float(stdtrit(len(x) - 1, 0.975) * sd) / math.sqrt(len(x))
        ends = f"{mean - half:+.{digits}f} to {mean + half:+.{digits}f}"
        lines.append(f"| {label} | {shown:.{digits}f} | {mean:+.{digits}f} ({ends}) |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Run the named problems, or all; seeds that are in schedule.json are not run again."""
    path = Path(__file__).resolve().parent / "schedule.json"
    found: dict[str, list[Seed]] = json.loads(path.read_text()) if path.exists() else {}
    with threads(1), Progress() as progress:
        for name in names or PROBLEMS:
            done = found.setdefault(name, [])
            for seed in progress.track(range(len(done), PROBLEMS[name].seeds), description=name):
                done.append(train(PROBLEMS[name], seed))
                path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    tables = [
        markdown(name, PROBLEMS[name], found[name])
        for name in PROBLEMS
        if len(found.get(name, [])) > 1
    ]
    path.with_suffix(".md").write_text("\n".join(tables), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
