"""What a finish without bias is worth: trainings that begin biased, with different ends.

A training begins with the gradient IWAE-DReG with k = 5 draws and Adam at a constant step size.
After B evaluations each method takes over from the same state, and the step size falls linearly to
0 while B/2 more are spent:

    dreg5, dreg25, dreg40   IWAE-DReG with that many draws;
    jsa          a persistent chain of i-SIR for each row, DReG for the proposal;
    multilevel   unbiased: all levels of importance sampling up to a random one;
    auto         dreg5 until `mlmcgrad.Finish` says so, then multilevel; it checks when the step
                 size begins to fall and again halfway, for 0.5 % of the evaluations.

`cfa`: confirmatory factor analysis of 1000 rows with 30 items and 5 factors, whose likelihood and
maximum are known exactly. `ifa`: item factor analysis of 1000 persons, 30 hard binary items, 5
correlated factors; its maximum is computed by Newton steps on importance sampling with many draws.
There, deepirtools5 and deepirtools25 are the package deepirtools (IWAE-DReG, AMSGrad, a constant
step size, here the same) for the same evaluations and batches, if it is installed.

`python -m benchmarks.finish cfa ifa` continues with what is in finish.json, and writes finish.md
and docs/figures/finish.svg.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mlmcgrad as mg
from benchmarks.item_maximum import ItemMaximum, simulated
from mlmcgrad.factors import FactorModel, gaussian_log_likelihood
from mlmcgrad.finish import Finish, FinishCheck
from mlmcgrad.iwae import Objective
from mlmcgrad.kernels import Importance
from mlmcgrad.optim import Averaged
from mlmcgrad.paper.experiments import plots
from mlmcgrad.paper.experiments.reproduce.claims import student_interval

JSON = Path(__file__).with_name("finish.json")
FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "finish.svg"
TRUNKS = Path("runs") / "finish"  # states at each B, from which a later call continues
# Standard errors are 0.03 (cfa) and 0.2 (ifa).
LR = {"cfa": 3e-3, "ifa": 1e-2}
BATCH = 50
SEEDS = {"cfa": range(1, 7), "ifa": range(1, 6)}
BUDGETS = {"cfa": (1e5, 3e5, 1e6, 3e6), "ifa": (1e6, 3e6)}
METHODS = {
    "cfa": ("dreg5", "dreg40", "jsa", "multilevel", "auto"),
    "ifa": ("dreg5", "dreg25", "jsa", "multilevel", "auto", "deepirtools5", "deepirtools25"),
}
R = 2.0**-1.5
LEVELS = mg.MLMCSum(64, R, assignment="balanced")
_CHECKS = (0.0, 0.5)  # parts of the decay after which `auto` checks


@dataclass
class Task:
    """What is fitted, and how good parameters are."""

    name: str
    y: Tensor
    model: FactorModel
    measure: Callable[[FactorModel], dict[str, float]]


class Training:
    """A training whose gradient can be changed."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.lr, model = task, LR[task.name], task.model
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
        self.optimizer = torch.optim.Adam(model.parameters(), lr=self.lr, fused=True)
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
            self.step("dreg5", self.lr)

    def end(self, method: str) -> list[str]:
        """Spend half as much again while the step size falls; return what the checks said."""
        begin, total, checks, said = self.spent, 1.5 * self.spent, list(_CHECKS), []
        while self.spent < total:
            if method == "auto" and checks and self.spent >= begin + checks[0] * (total - begin):
                checks.pop(0)
                if not self.finish.finishing:
                    said.append(str(self.check()))
            now = "multilevel" if self.finish.finishing else "dreg5"
            rate = self.lr * max(0.0, (total - self.spent) / (total - begin))
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

    return Task("cfa", y, model, measure)


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


def ifa(seed: int) -> Task:
    """Binary items with a right answer that few persons know; each belongs to one factor."""
    y, truth = simulated(seed)
    best = ItemMaximum(truth.decoder, y)
    pattern = (truth.decoder.loadings > 0.0).float()
    model = FactorModel(y, pattern, hidden=100, generator=torch.Generator().manual_seed(seed))

    def measure(model: FactorModel) -> dict[str, float]:
        lost, error = best.lost(model.decoder)
        z = best.errors(model.decoder)
        ratio = model.decoder.free.detach().double() / best.theta.free.detach()
        return {
            "lost": lost,
            "lost_error": error,
            "loadings_error": float(z.square().mean().sqrt()),
            "shrinkage": float(ratio.mean()) - 1.0,
        }

    return Task("ifa", y, model, measure)


TASKS: dict[str, Callable[[int], Task]] = {"cfa": cfa, "ifa": ifa}


def deepirtools(task: Task, seed: int, draws: int, evaluations: float) -> tuple[FactorModel, float]:
    """Fit items with the package of this name; return the model and the seconds it took."""
    other = importlib.import_module("deepirtools")
    pattern = (task.model.decoder.loadings != 0.0).float()
    items, factors = pattern.shape
    other.manual_seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        rival = other.IWAVE(
            "grm",
            learning_rate=LR["ifa"],
            latent_size=factors,
            n_cats=[2] * items,
            Q=pattern,
            correlated_factors=list(range(factors)),
            inference_net_sizes=[100],
            n_intervals=10**9,
        )
        epochs = round(evaluations / (draws * len(task.y)))
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it has not stopped by itself
            rival.fit(task.y, batch_size=BATCH, iw_samples=draws, max_epochs=epochs)
        seconds = time.process_time() - begin
    model = copy.deepcopy(task.model)
    theta = model.decoder
    loadings = rival.loadings
    signs = torch.where(loadings.sum(0) < 0.0, -1.0, 1.0)
    lower = torch.linalg.cholesky(signs[:, None] * rival.cov * signs)
    lower = lower / lower.diagonal()[:, None]
    with torch.no_grad():
        theta.free.copy_((loadings * signs)[tuple(theta.place)])
        theta.intercept.copy_(rival.intercepts.flatten())
        assert theta.raw is not None
        theta.raw.copy_(lower[tuple(torch.tril_indices(factors, factors, -1))])
    return model, seconds


def measure(name: str, results: list[dict[str, Any]], save: Callable[[], None]) -> None:
    """Add what is missing: all seeds of a budget, then those of the next."""
    done = {(r["task"], r["seed"], r["budget"], r["method"]) for r in results}
    installed = importlib.util.find_spec("deepirtools") is not None
    TRUNKS.mkdir(parents=True, exist_ok=True)
    for earlier, budget in pairwise((0.0, *BUDGETS[name])):
        for seed in SEEDS[name]:
            methods = [m for m in METHODS[name] if (name, seed, budget, m) not in done]
            methods = [m for m in methods if installed or not m.startswith("deepirtools")]
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
                result = {"task": name, "seed": seed, "budget": budget, "method": method}
                if method.startswith("deepirtools"):
                    draws = int(method.removeprefix("deepirtools"))
                    model, seconds = deepirtools(task, seed, draws, 1.5 * budget)
                    result |= task.measure(model)
                    # Seconds of a third, as for the others.
                    result |= {"evaluations": 1.5 * budget, "seconds": round(seconds / 3.0, 2)}
                    results.append(result)
                    save()
                    continue
                begin = time.process_time()
                said = training.end(method)
                seconds = time.process_time() - begin
                with training.averaged.applied():
                    averaged = task.measure(task.model)
                result |= task.measure(task.model)
                result |= {f"averaged_{key}": value for key, value in averaged.items()}
                result |= {"evaluations": training.spent, "seconds": round(seconds, 2)}
                results.append(result | {"checks": said})
                save()
                training.load(state)


NAMES = {
    "dreg5": "IWAE-DReG(5)",
    "dreg25": "IWAE-DReG(25)",
    "dreg40": "IWAE-DReG(40)",
    "jsa": "persistent chains (JSA)",
    "multilevel": "multilevel",
    "auto": "by the rule (auto)",
    "deepirtools5": "deepirtools, 5 draws",
    "deepirtools25": "deepirtools, 25 draws",
}
TITLES = {
    "cfa": "Confirmatory factor analysis: 1000 rows, 30 items, 5 factors, exact likelihood",
    "ifa": "Item factor analysis: 1000 persons, 30 hard binary items, 5 correlated factors",
}


def of(
    results: list[dict[str, Any]], name: str, budget: float, method: str
) -> dict[int, dict[str, Any]]:
    """Return the results of a method by seed."""
    key = (name, budget, method)
    return {r["seed"]: r for r in results if (r["task"], r["budget"], r["method"]) == key}


def markdown(results: list[dict[str, Any]]) -> str:
    """Return the tables of finish.md."""
    lines: list[str] = []
    for name, budgets in BUDGETS.items():
        last = "loadings, standard errors" if name == "ifa" else "loadings, rmse"
        for budget in budgets:
            first = of(results, name, budget, "dreg5")
            if not first:
                continue
            lines += [
                f"{TITLES[name]}; {budget:.0e} evaluations with IWAE-DReG(5), then half as many "
                f"more; means over {len(first)} seeds".replace("e+0", "e"),
                "",
                f"| the end | nats lost | at averages | DReG(5) over this, 95 % | {last} | s |",
                "|---|---|---|---|---|---|",
            ]
            for method in METHODS[name]:
                if own := of(results, name, budget, method):
                    lines.append(_row(method, own, first))
            lines.append("")
    return "\n".join(lines)


def _row(method: str, own: dict[int, dict[str, Any]], first: dict[int, dict[str, Any]]) -> str:
    def mean(key: str, digits: str = ".3g") -> str:
        values = [row[key] for row in own.values() if key in row]
        return format(sum(values) / len(values), digits) if values else ""

    title = NAMES[method]
    if method == "auto":
        changed = sum(any("finish without" in each for each in r["checks"]) for r in own.values())
        title += f", changes in {changed} of {len(own)}"
    ratio = ""
    pairs = [(first[seed]["lost"], row["lost"]) for seed, row in own.items()]
    if method != "dreg5" and len(pairs) > 1 and min(map(min, pairs)) > 0.0:
        interval = student_interval([math.log(a / b) for a, b in pairs])
        middle, low, high = (math.exp(end or 0.0) for end in interval)
        ratio = f"{middle:.3g} ({low:.3g} to {high:.3g})"
    error = "loadings_error" if "loadings_error" in next(iter(own.values())) else "rmse"
    cells = [title, mean("lost"), mean("averaged_lost"), ratio, mean(error), mean("seconds", ".1f")]
    return f"| {' | '.join(cells)} |"


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw log-likelihood lost against evaluations."""
    shown = {"dreg5": "dreg", "dreg40": "average", "jsa": "jsa", "multilevel": "mlmc"}
    drawn = TRUNKS / "finish"
    with plots.panels(1, drawn) as (_, (axes,)):
        for method, colour in shown.items():
            ends, lost = [], []
            for budget in BUDGETS["cfa"]:
                if own := of(results, "cfa", budget, method):
                    ends.append(1.5 * budget)
                    logs = [math.log(row["lost"]) for row in own.values()]
                    lost.append([math.exp(v or 0.0) for v in student_interval(logs)])
            middle, low, high = zip(*lost, strict=True)
            tint, mark = plots.COLOURS[colour], plots.MARKERS.get(colour, "s")
            axes.fill_between(ends, low, high, color=tint, alpha=0.15, linewidth=0.0)
            axes.plot(ends, middle, color=tint, marker=mark, label=NAMES[method])
        plots.log_axes(axes)
        axes.set_xlabel("evaluations in all; the last third by the method named")
        axes.set_ylabel("log-likelihood lost, nats")
        axes.legend()
    path.write_bytes(drawn.with_suffix(".svg").read_bytes())


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
    JSON.with_suffix(".md").write_text(markdown(results))
    draw(results, FIGURE)


if __name__ == "__main__":
    main()
