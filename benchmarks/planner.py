"""Does `diagnostics.plan` choose well? Against all estimators of its grid, by their true errors.

For each problem and budget: the mean squared error of the planned estimator over that of the best
one, the predicted over the true error, and whether the verdict (multilevel or not) is that of the
best. Once with long simulations allowed, and once with as many simulations as a training has, four
steps each on average. `python -m benchmarks.planner` writes planner.md and planner.json; it takes
about a quarter of an hour.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import Progress

from benchmarks.planner_problems import TASKS, Task
from mlmcgrad.diagnostics import Predicted, describe, plan
from mlmcgrad.diagnostics._plan import grid
from mlmcgrad.estimators import Average, Estimator
from mlmcgrad.kernels import Importance
from mlmcgrad.paper.runs.process import threads

ROOT = Path(__file__).resolve().parent
BUDGETS = (1e4, 1e6, 1e8)
STEPS = 4.0  # of a simulation in a training, on average
LONGEST, LEVEL = 2**16, 8
GOOD, NEAR = 1.5, 0.25


@dataclass(frozen=True)
class Row:
    """One plan."""

    problem: str
    simulations: str
    budget: float
    best: str
    chosen: str
    ratio: float  # of true mean squared errors
    predicted: float  # over the true one
    known: bool
    verdict: bool  # whether it is right about multilevel


def rows(name: str, task: Task, seed: int = 7) -> list[Row]:
    """All plans of a problem."""
    truths: dict[str, Predicted] = {}

    def truth(estimator: Estimator) -> Predicted:
        key = repr(estimator)
        if key not in truths:
            truths[key] = task.truth(estimator)
        return truths[key]

    nested, found = isinstance(task.gradient.kernel, Importance), []
    for label in ("few", "many"):
        for budget in BUDGETS:
            among = max(8, task.rows) if label == "few" else int(budget / task.cost.of(STEPS))
            rng = torch.Generator().manual_seed(seed)
            choice = plan(
                task.gradient,
                task.x0,
                *task.context,
                budget=budget,
                simulations=among,
                generator=rng,
            )
            possible = [
                e
                for e in (*grid(LEVEL, nested=nested), choice.estimator)
                if e.longest() <= LONGEST and task.cost.of(e.expected_length()) * among <= budget
            ]
            best = min(possible, key=lambda e: truth(e).error(budget))
            mine = truth(choice.estimator).error(budget)
            plain = isinstance(best, Average)
            found.append(
                Row(
                    name,
                    label,
                    budget,
                    describe(best),
                    describe(choice.estimator),
                    mine / truth(best).error(budget),
                    choice.error**2 / mine,
                    choice.known,
                    choice.multilevel != plain,
                )
            )
    return found


def markdown(found: list[Row]) -> str:
    """The table, and what it comes to."""
    lines = [
        "| problem | simulations | budget | best | planned | error over the best's | "
        "predicted over true | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.problem} | {r.simulations} | {r.budget:.0e} | `{r.best}` | `{r.chosen}` | "
        f"{r.ratio:.2f} | {r.predicted:.2f}{' (known)' if r.known else ''} | "
        f"{'right' if r.verdict else 'wrong'} |"
        for r in found
    ]
    for label in ("few", "many"):
        some = [r for r in found if r.simulations == label]
        good = sum(r.ratio <= GOOD for r in some)
        known = [r for r in some if r.known]
        near = sum(abs(r.predicted - 1.0) <= NEAR for r in known)
        right = sum(r.verdict for r in some)
        lines.append(
            f"\n{label.capitalize()} simulations: {good} of {len(some)} plans have at most {GOOD} "
            f"times the error of the best; of {len(known)} predictions that are said to be known "
            f"{near} are right to 25 %; {right} of {len(some)} verdicts are right."
        )
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Run the named problems, or all."""
    found: list[Row] = []
    with threads(1), Progress() as progress:
        for name in progress.track(names or list(TASKS), description="plans"):
            found += rows(name, TASKS[name]())
            print(markdown(found[-6:]), flush=True)
    if not names:
        text = json.dumps([asdict(r) for r in found], indent=2, ensure_ascii=False)
        (ROOT / "planner.json").write_text(text + "\n", encoding="utf-8")
        (ROOT / "planner.md").write_text(markdown(found), encoding="utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main(sys.argv[1:])
