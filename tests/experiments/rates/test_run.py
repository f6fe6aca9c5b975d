"""`mlmcgrad rates`: independent replicas, a smoke run end to end, a run that is resumed."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import mlmcgrad as mg
from mlmcgrad.cli import main
from mlmcgrad.experiments.rates import run as rates
from mlmcgrad.experiments.rates.figures import draw
from mlmcgrad.experiments.rates.settings import OPTIONS, START, STAY, Name, Rates
from mlmcgrad.experiments.rates.tables import show
from mlmcgrad.problems import sticky
from tests.chains import rng, run


def _train(optimizer: Name, **changes: Any) -> dict[str, Any]:
    settings = {"alpha": 0.5, "iterations": 40, "replicas": 6, "seed": 0, "stream": 0}
    return rates.train(lambda share: None, optimizer=optimizer, **{**settings, **changes})


@pytest.mark.parametrize("name", OPTIONS)
def test_replicas_do_not_touch_one_another(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the start of replica 0: all others stay the same, bit for bit."""
    before = np.array(_train(name)["values"])
    original = rates.problem_for

    def moved(replicas: int, generator: torch.Generator) -> Any:
        problem = original(replicas, generator)
        with torch.no_grad():
            problem.theta[0] += 1.0
        return problem

    monkeypatch.setattr(rates, "problem_for", moved)
    after = np.array(_train(name)["values"])
    assert (before[:, 0] != after[:, 0]).all()
    assert (before[:, 1:] == after[:, 1:]).all()


def test_every_replica_gets_the_estimate_of_its_own_chain() -> None:
    """Row r of the gradient is Σ_j c_j H_θ(x_j) over the points of chain r, to rounding."""
    problem = rates.problem_for(40, rng(1))
    truncation = mg.schedules.power(2.0, 0.5)
    gradient = rates.make_gradient(problem, truncation)
    start, generator = problem.start(START), rng(2)
    (found,), _ = gradient.gradient(start, problem.theta, n=50, generator=generator)
    generator = rng(2)
    plan = mg.MLMC(truncation).plan(40, 50, generator)
    theta = problem.theta.detach()
    measure, _ = run(problem.kernel(), start, plan, (theta,), generator)
    pieces = measure.coefficient[:, None] * problem.slopes(theta)[measure.owner, measure.points]
    expected = torch.zeros_like(theta).index_add_(0, measure.owner, pieces)
    assert torch.allclose(found, expected, atol=1e-12)
    assert not torch.allclose(found / 40, expected, atol=1e-3)  # the mean over chains, not undone


def test_start_is_the_state_with_the_largest_bias() -> None:
    problem = sticky(rows=100, stay=STAY)
    levels = []
    for state in range(4):
        ends = problem.biased_minima(problem.theta.detach(), 2, state)
        levels.append(float(problem.gradient(ends).square().sum(-1).mean()))
    assert int(np.argmax(levels)) == START


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rates")
    assert main(["rates", "--preset", "smoke", "--jobs", "1", "--out", str(out)]) == 0
    return out


def test_smoke(folder: Path) -> None:
    assert {p.name for p in folder.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "summary.json",
        "rates.png",
        "rates.svg",
        "lock",
    }
    summary = json.loads((folder / "summary.json").read_text())
    runs = summary["runs"]
    assert [(r["optimizer"], r["alpha"]) for r in runs] == [
        (name, alpha) for name in OPTIONS for alpha in (0.0, 0.25, 0.5, 1.0)
    ]
    for row in runs:
        assert row["bound_holds"] is True
        assert row["slope_se"] > 0.0
        assert row["verdict"]
        low, high = row["final_interval"]
        assert low < row["final"] < high < row["final_bound"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 12 * len(rates.log_grid(60))
    for line in lines:
        assert sum(line["terms"].values()) == pytest.approx(line["bound"])


def test_figure_and_table_come_from_the_folder(folder: Path, tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "summary.json"):
        shutil.copy(folder / name, tmp_path)
    draw(tmp_path)
    assert (tmp_path / "rates.svg").read_bytes() == (folder / "rates.svg").read_bytes()
    text = io.StringIO()
    summary = json.loads((folder / "summary.json").read_text())
    show(summary, Console(file=text, width=80))
    assert "…" not in text.getvalue()
    assert max(len(line) for line in text.getvalue().splitlines()) <= 80


def test_resumed_in_processes_gives_the_same_summary(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in its fifth part; the second call makes only the others, in two processes."""
    original = rates.train
    made: list[Any] = []

    def interrupted(report: Any, **values: Any) -> Any:
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(values)
        return original(report, **values)

    interrupted.__module__ = original.__module__
    interrupted.__qualname__ = original.__qualname__
    monkeypatch.setattr(rates, "train", interrupted)
    arguments = ["rates", "--preset", "smoke", "--out", str(tmp_path)]
    assert main([*arguments, "--jobs", "1"]) == 130
    assert len(list(tmp_path.glob("parts*/*.json"))) == 4
    monkeypatch.setattr(rates, "train", original)
    settings = Rates(tmp_path, preset="smoke", jobs=2, resume=True)
    summary = rates.run(settings, Console(file=io.StringIO()))
    assert summary == json.loads((folder / "summary.json").read_text())
    assert not list(tmp_path.glob("parts*"))
