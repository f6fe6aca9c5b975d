"""`mlmcgrad plan`: the gradients it compares are those of training; its files and numbers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.estimators import MLMC, Average
from mlmcgrad.kernels import ISIR, Importance
from mlmcgrad.paper.experiments.plan import (
    FromProposal,
    contenders,
    gradient,
    images,
    kernels,
    run,
    starts,
)
from mlmcgrad.paper.experiments.settings import PlanSettings
from mlmcgrad.paper.training import loop
from mlmcgrad.paper.training.loop import read_trainer
from mlmcgrad.paper.training.trainer import Trainer
from tests.chains import rng
from tests.faults.commands import shortened
from tests.folders import content
from tests.paper.training import tiny
from tests.statistics import same_mean


def trainer(**changes: Any) -> Trainer:
    found = Trainer(tiny.config(Path("run"), **changes).settings(), tiny.source())
    found.iteration = 100
    return found


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"method": "iwae"}, ["IWAE", "BR-IWAE"]),
        ({"method": "br"}, ["IWAE", "BR-IWAE"]),
        ({"method": "mlmc"}, ["IWAE", "BR-IWAE", "this run"]),
        ({"method": "br", "rao_blackwell": True}, ["IWAE", "BR-IWAE", "this run"]),
        ({"method": "br", "kernel": "mala"}, ["IWAE", "BR-IWAE", "this run"]),
        ({"method": "br", "persistent": True}, ["IWAE", "BR-IWAE", "this run"]),
    ],
)
def test_the_run_is_a_contender_if_it_is_none_yet(
    changes: dict[str, Any], names: list[str]
) -> None:
    assert list(contenders(trainer(**changes))) == names


def test_estimators_are_those_of_the_last_iteration() -> None:
    found = contenders(trainer())
    assert found["IWAE"].estimator == Average(1)
    assert isinstance(found["IWAE"].kernel, Importance)
    assert found["BR-IWAE"].estimator == Average(30)  # T_n = 3 √100
    assert isinstance(found["BR-IWAE"].kernel, ISIR)
    own = found["this run"].estimator
    assert isinstance(own, MLMC)
    assert own.longest(100) == 16


@pytest.mark.parametrize("kernel", ["isir", "mala"])
def test_the_gradient_of_the_run_is_that_of_its_training(kernel: str) -> None:
    """Null hypothesis: both have the same mean; with the sign of a bound it is another one."""
    run = trainer(kernel=kernel, method="mlmc", step_size=0.1)
    y, mean, log_scale = images(run, 8, seed=0).context
    own, generator = contenders(run)["this run"], rng()
    mine, training = [], []
    for _ in range(150):
        tensors, _ = own.gradient(None, y, mean, log_scale, n=16, generator=generator)
        mine.append(torch.cat([t.flatten() for t in tensors]))
        run.optimizer.zero_grad()
        run.objective.backward(y, n=16, generator=generator)
        grads = [p.grad for p in run.model.decoder.parameters() if p.grad is not None]
        training.append(torch.cat([g.flatten() for g in grads]))
    assert same_mean(torch.stack(mine), torch.stack(training))
    assert not same_mean(-torch.stack(mine), torch.stack(training))


def test_chains_start_from_draws_of_the_encoder() -> None:
    run = trainer(kernel="rwmh", method="br")
    shown = images(run, 4, seed=0)
    kernel = contenders(run)["this run"].kernel
    assert isinstance(kernel, FromProposal)
    assert kernel.chains(None, shown.context) == 4
    assert kernel.chains(torch.zeros(3, 2), shown.context) == 3


def test_one_candidate_is_an_elbo_and_no_chain() -> None:
    run = trainer(method="iwae", candidates=1)
    found = kernels(run)
    assert isinstance(found["isir"], ISIR)
    assert found["isir"].candidates == 2
    assert isinstance(found["importance"], Importance)
    assert found["importance"].candidates == 1


def test_persistent_chains_go_on() -> None:
    run = trainer(method="br", persistent=True)
    shown = images(run, 3, seed=0)
    assert run.store is not None
    run.store[shown.rows[:1]] = torch.full((1, 2), 7.0)
    x0 = starts(run, shown, rng())
    assert x0 is not None
    assert (x0[0] == 7.0).all()
    drawn = run.model.propose(3, *shown.context, generator=rng())
    assert torch.equal(x0[1:], drawn[1:])  # of images that were never visited
    assert starts(trainer(), shown, rng()) is None


def test_images_are_random_but_always_the_same() -> None:
    run = trainer()
    first, again, other = (images(run, 10, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.rows, again.rows)
    assert not torch.equal(first.rows, other.rows)
    assert len(set(first.rows.tolist())) == 10
    with pytest.raises(ValueError, match="rows must be ≤ 44, the number of images, got 45"):
        images(run, 45, seed=0)


def test_parameters_are_those_of_the_decoder() -> None:
    run = trainer()
    found = gradient(run, kernels(run)["isir"], Average(1)).parameters
    assert found is not None
    assert [*map(id, found)] == [*map(id, run.model.decoder.parameters())]


def plan(folder: Path, *, draw: bool = False, **changes: Any) -> tuple[dict[str, Any], str]:
    """The summary, and what is printed; figures, which take longest, are drawn on demand."""
    console = Console(file=io.StringIO(), width=80)
    values: dict[str, Any] = {"rows": 2, "pilot": 200.0, "budget": 1e4, **changes}
    with shortened(), pytest.MonkeyPatch.context() as patch:
        if not draw:
            patch.setattr("mlmcgrad.paper.experiments.plan.save", lambda *_, **__: None)
        summary = run(PlanSettings(folder, **values), console)
    assert isinstance(console.file, io.StringIO)
    return summary, console.file.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "mlmc"},
        {"method": "br", "kernel": "rwmh", "candidates": 1},
        {"method": "iwae", "candidates": 1},
        {"method": "mlmc", "persistent": True, "estimator": "sum", "assignment": "shared"},
        {"method": "mlmc", "kernel": "importance"},
    ],
)
def test_a_training_is_planned_and_compared(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tiny.run(folder, iterations=3, **changes)
    before = content(folder)
    summary, printed = plan(folder)
    after = content(folder)
    assert {name: after[name] for name in before} == before  # the training is as it was
    assert json.loads((folder / "plan" / "summary.json").read_text()) == summary
    assert set(summary["plans"]) == {"isir", "importance"}
    assert summary["iteration"] == 3
    names = [row["name"] for row in summary["comparison"]["contenders"]]
    own = ["this run"] if changes["method"] == "mlmc" or "kernel" in changes else []
    assert names == ["IWAE", "BR-IWAE", *own, "planned"]
    budgets = [row["budget"] for row in summary["comparison"]["best"]]
    assert budgets == pytest.approx([1e1, 1e2, 1e3, 1e4, 1e5, 1e6])
    assert summary["estimator"] == summary["plans"][summary["kernel"]]["estimator"]
    assert summary["best"] == summary["comparison"]["best"][3]["names"]
    assert f"measured at 10000 evaluations: best is {summary['best'][0]}" in printed
    for text in (
        "i-SIR. A gradient",
        "Importance sampling. A gradient",
        "is best at budgets",
        "planned for iteration 3, at averaged parameters: ",
        str(folder),
    ):
        assert text in printed


def test_it_plans_at_averaged_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "load", lambda settings: tiny.source())
    tiny.run(tmp_path, iterations=3, method="mlmc", lr=0.1)
    trainer = read_trainer(tmp_path)
    last = [p.detach().clone() for p in trainer.model.parameters()]
    with trainer.averaged.applied():
        averages = [p.detach().clone() for p in trainer.model.parameters()]
    places: list[list[torch.Tensor]] = []

    def noting(trainer: Trainer, *_: object) -> None:
        places.append([p.detach().clone() for p in trainer.model.parameters()])
        raise ValueError("seen")

    monkeypatch.setattr("mlmcgrad.paper.experiments.plan._plans", noting)
    with pytest.raises(ValueError, match="seen"):
        plan(tmp_path)
    assert all(map(torch.equal, places[0], averages))
    assert not all(map(torch.equal, places[0], last))


def test_the_numbers_are_written_before_the_figures(tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlmcgrad.diagnostics.Plan.plot", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            plan(tmp_path)
    first = json.loads((tmp_path / "plan" / "summary.json").read_text())
    assert plan(tmp_path)[0] == first


def test_a_budget_that_is_no_number_of_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer treats numbers near 0 as 0: the option is refused before there is one."""
    assert main(["plan", str(tmp_path), "--budget", "5e-324"]) == 2
    said = "mlmcgrad: budget must be from 1 to 1e+15, got 5e-324\n"
    assert capsys.readouterr().err == said


def test_figures_are_written(tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=3)
    plan(tmp_path, draw=True)
    written = {path.name for path in (tmp_path / "plan").iterdir()}
    assert written == {*PlanSettings.files, "config.json", "summary.json", "lock"}


def test_the_same_numbers_again_in_place(tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=3)
    first, _ = plan(tmp_path)
    errors = {name: each["error"] for name, each in first["plans"].items()}
    assert errors[first["kernel"]] == min(errors.values())  # the least predicted error
    assert plan(tmp_path)[0] == first
    with pytest.raises(ValueError, match=r"seed must be 0 as .*config\.json says, got 1"):
        plan(tmp_path, seed=1)
    assert plan(tmp_path, seed=1, out=tmp_path / "other")[0] != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 0.0}, "budget must be from 1 to 1e\\+15, got 0.0"),
        ({"budget": 5e-324}, "budget must be from 1 to 1e\\+15, got 5e-324"),
        ({"budget": 1e16}, "budget must be from 1 to 1e\\+15, got 1e\\+16"),
        ({"budget": float("nan")}, "budget must be a finite number, got nan"),
        ({"pilot": 1e10}, "pilot must be from 1 to 1e\\+09"),
        ({"pilot": 5e-324}, "pilot must be from 1 to 1e\\+09, got 5e-324"),
        ({"rows": 0}, "rows must be an integer from 1"),
        ({"simulations": 0}, "simulations must be an integer"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanSettings(Path("run"), **changes)


def test_a_budget_for_too_many_simulations(tmp_path: Path) -> None:
    tiny.run(tmp_path, iterations=3)
    with pytest.raises(
        ValueError, match="budget must be ≥ 15000, the evaluations of 5000 simulations"
    ):
        plan(tmp_path, simulations=5000)
