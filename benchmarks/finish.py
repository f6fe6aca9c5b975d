"""What a finish without bias is worth: trainings that begin biased, with different ends.

A training begins with the gradient IWAE-DReG with k = 5 draws and Adam at a constant step size.
After B evaluations each method takes over from the same state, and the step size falls linearly to
0 while B/2 more are spent:

    dreg5, dreg25, dreg40   IWAE-DReG with that many draws;
    jsa          a persistent chain of i-SIR for each row, DReG for the proposal;
    multilevel   unbiased: all levels of importance sampling up to a random one;
    auto         dreg5 until `mlmcgrad.Finish` says so, then multilevel; it checks when the step
                 size begins to fall and again halfway, for 1 % of the evaluations.

`cfa`: confirmatory factor analysis of 1000 rows with 30 items and 5 factors, whose likelihood and
maximum are known exactly. `ifa`: item factor analysis of 1000 persons, 30 hard binary items, 5
correlated factors; its maximum is computed by Newton steps on importance sampling with many draws.

`python -m benchmarks.finish cfa` goes on with what is in finish.json, and writes finish.md.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mlmcgrad as mg
from mlmcgrad.factors import FactorModel, gaussian_log_likelihood
from mlmcgrad.finish import Finish, FinishCheck
from mlmcgrad.iwae import Objective
from mlmcgrad.kernels import Importance
from mlmcgrad.optim import Averaged

JSON = Path(__file__).with_name("finish.json")
TRUNKS = Path("runs") / "finish"  # states at each B, from which a later call continues
LR = 3e-3
BATCH = 50
SEEDS = range(1, 7)
BUDGETS = {"cfa": (1e5, 3e5, 1e6, 3e6), "ifa": (1e6,)}
METHODS = {
    "cfa": ("dreg5", "dreg40", "jsa", "multilevel", "auto"),
    "ifa": ("dreg5", "dreg25", "jsa", "multilevel", "auto"),
}
R = 2.0**-1.5
LEVELS = mg.MLMCSum(64, R, assignment="balanced")
_CHECKS = (0.0, 0.5)  # parts of the decay after which `auto` checks


@dataclass
class Task:
    """What is fitted, and how good parameters are."""

    y: Tensor
    model: FactorModel
    measure: Callable[[FactorModel], dict[str, float]]


class Training:
    """A training whose gradient can be changed."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, model = task, task.model
        self.objectives = {
            "multilevel": Objective(
                model,
                "mlmc",
                kernel="importance",
                multilevel="sum",
                continuation=R,
                truncation=LEVELS.truncation,
                assignment="balanced",
                encoder="dreg",
                thinning=0.0,
            ),
            "jsa": Objective(model, "iwae", rao_blackwell=True, encoder="dreg", thinning=0.0),
        }
        for k in (5, 25, 40):
            self.objectives[f"dreg{k}"] = Objective(
                model, "iwae", candidates=k, kernel="importance", encoder="dreg", thinning=0.0
            )
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=True)
        self.averaged = Averaged(self.optimizer)
        levels = mg.MarkovGradient(
            Importance(model.log_weight, model.propose, 5),
            lambda z, y, *_: -model.log_joint(z, y),
            LEVELS,
            parameters=model.decoder.parameters(),
        )
        self.finish = Finish(self.optimizer, levels)
        self.generator = torch.Generator().manual_seed(seed)
        self.store = mg.Store(len(task.y), model.factors)
        self.order = torch.empty(0, dtype=torch.int64)
        self.spent, self.iterations = 0, 0

    def step(self, method: str, lr: float) -> None:
        """Do one iteration."""
        if len(self.order) < BATCH:
            self.order = torch.randperm(len(self.task.y), generator=self.generator)
        rows, self.order = self.order[:BATCH], self.order[BATCH:]
        x0 = self.store.start(rows) if method == "jsa" else None
        self.optimizer.zero_grad()
        info = self.objectives[method].backward(self.task.y[rows], x0=x0, generator=self.generator)
        if x0 is not None:
            self.store[rows] = info.estimate.last
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.spent += info.evaluations
        self.iterations += 1

    def begin(self, budget: float) -> None:
        """Train at the constant step size until `budget` evaluations are spent in all."""
        while self.spent < budget:
            self.step("dreg5", LR)

    def end(self, method: str) -> list[str]:
        """Spend half as much again while the step size falls; return what the checks said."""
        begin, total, checks, said = self.spent, 1.5 * self.spent, list(_CHECKS), []
        while self.spent < total:
            if method == "auto" and checks and self.spent >= begin + checks[0] * (total - begin):
                checks.pop(0)
                if not self.finish.finishing:
                    said.append(str(self.check()))
            now = "multilevel" if self.finish.finishing else "dreg5"
            rate = LR * max(0.0, (total - self.spent) / (total - begin))
            self.step(now if method == "auto" else method, rate)
        return said

    def check(self) -> FinishCheck | None:
        """Let the rule decide at the averaged parameters."""
        generator = torch.Generator().manual_seed(10**6 + self.iterations)
        y, before = self.task.y, self.finish.evaluations
        with self.averaged.applied():
            with torch.no_grad():
                q = self.task.model.encoder(y)
            check = self.finish.check(None, y, *q, spent=self.spent, generator=generator)
        self.spent += self.finish.evaluations - before
        return check

    def state(self) -> dict[str, Any]:
        """Return copies of everything that the rest of the training depends on."""
        parts = {name: getattr(self, name).state_dict() for name in _PARTS}
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        state = {"parts": parts, "numbers": numbers, "model": self.task.model.state_dict()}
        return copy.deepcopy(state) | {"generator": self.generator.get_state()}

    def load(self, state: dict[str, Any]) -> None:
        """Return to a state."""
        state = copy.deepcopy(state)
        self.task.model.load_state_dict(state["model"])
        for name in _PARTS:
            getattr(self, name).load_state_dict(state["parts"][name])
        vars(self).update(state["numbers"])
        self.generator.set_state(state["generator"])


_PARTS = ("optimizer", "averaged", "finish", "store")
_NUMBERS = ("order", "spent", "iterations")


def cfa(seed: int) -> Task:
    """Gaussian items with a known likelihood; many loadings of the same sign."""
    rng = torch.Generator().manual_seed(1000 + seed)
    rows, items, factors = 1000, 30, 5
    free = torch.rand(items, factors, generator=rng) < 0.6
    free[:factors] = torch.ones(factors, factors).tril().bool()
    truth = torch.where(free, 0.3 + 0.5 * torch.randn(items, factors, generator=rng), 0.0)
    z = torch.randn(rows, factors, generator=rng)
    y = z @ truth.T + torch.randn(rows, items, generator=rng)
    rng = torch.Generator().manual_seed(seed)
    pattern = 0.5 * truth.sign()
    model = FactorModel(y, pattern, "gaussian", correlated=False, generator=rng)
    best, estimates = _maximum(model, y)

    def measure(model: FactorModel) -> dict[str, float]:
        error = (model.decoder.free.double() - estimates).square().mean().sqrt()
        return {"lost": best - gaussian_log_likelihood(model, y), "rmse": float(error)}

    return Task(y, model, measure)


def _maximum(model: FactorModel, y: Tensor) -> tuple[float, Tensor]:
    """Return the maximum of the exact likelihood, and the loadings there."""
    theta = copy.deepcopy(model).double().decoder
    optimizer = torch.optim.LBFGS(
        theta.parameters(),
        max_iter=2000,
        tolerance_grad=1e-9,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
        history_size=50,
    )

    def minus() -> Tensor:
        optimizer.zero_grad()
        noise = torch.diag(theta.log_variance.exp())
        law = torch.distributions.MultivariateNormal(
            theta.intercept, theta.loadings @ theta.loadings.T + noise
        )
        value: Tensor = -law.log_prob(y.double()).mean()
        value.backward()
        return value

    optimizer.step(minus)
    return -len(y) * float(minus().detach()), theta.free.detach()


TASKS: dict[str, Callable[[int], Task]] = {"cfa": cfa}


def measure(name: str, results: list[dict[str, Any]], save: Callable[[], None]) -> None:
    """Add what is missing: all seeds of a budget, then those of the next."""
    done = {(r["task"], r["seed"], r["budget"], r["method"]) for r in results}
    TRUNKS.mkdir(parents=True, exist_ok=True)
    for earlier, budget in pairwise((0.0, *BUDGETS[name])):
        for seed in SEEDS:
            methods = [m for m in METHODS[name] if (name, seed, budget, m) not in done]
            trunk = TRUNKS / f"{name}-{seed}-{budget:g}.pt"
            if not methods and trunk.exists():
                continue
            task = TASKS[name](seed)
            training = Training(task, seed)
            for path in (trunk, TRUNKS / f"{name}-{seed}-{earlier:g}.pt"):
                if path.exists():
                    training.load(torch.load(path, weights_only=True))
                    break
            training.begin(budget)
            state = training.state()
            torch.save(state, trunk)
            for method in methods:
                begin = time.process_time()
                said = training.end(method)
                seconds = time.process_time() - begin
                with training.averaged.applied():
                    averaged = task.measure(task.model)
                results.append(
                    {
                        "task": name,
                        "seed": seed,
                        "budget": budget,
                        "method": method,
                        **task.measure(task.model),
                        **{f"averaged_{key}": value for key, value in averaged.items()},
                        "evaluations": training.spent,
                        "seconds": round(seconds, 2),
                        "checks": said,
                    }
                )
                save()
                training.load(state)


def main() -> None:
    """Continue with finish.json."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    results = json.loads(JSON.read_text()) if JSON.exists() else []

    def save() -> None:
        JSON.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(results[-1]), flush=True)

    for name in sys.argv[1:] or TASKS:
        measure(name, results, save)


if __name__ == "__main__":
    main()
