"""`mlmcgrad rates`: independent replicas, a smoke run end to end, a run that is resumed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import mlmcgrad as mg
from mlmcgrad.cli import main
from mlmcgrad.paper.experiments import rates
from mlmcgrad.paper.experiments.folder import Findings
from mlmcgrad.paper.experiments.rates import GAMMA, OPTIONS, START, STAY, Name
from mlmcgrad.paper.experiments.settings import RatesSettings
from mlmcgrad.problems import sticky
from tests.chains import rng, run
from tests.paper.experiments.drawing import recorded


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
    plan = mg.MLMC(truncation).draw(40, 50, generator)
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
    with recorded(rates, draw=True) as drawn:
        assert main(["rates", "--preset", "smoke", "--jobs", "1", "--out", str(out)]) == 0
    assert drawn == [Findings.read(out)]
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


def test_table_fits_a_terminal(folder: Path) -> None:
    text = io.StringIO()
    summary = json.loads((folder / "summary.json").read_text())
    rates.show(summary, Console(file=text, width=80))
    assert "…" not in text.getvalue()
    assert max(len(line) for line in text.getvalue().splitlines()) <= 80


def test_resumed_gives_the_same_summary(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in its eighth part; the second call makes only the others."""
    original = rates.train
    made: list[Any] = []

    def interrupted(report: Any, **values: Any) -> Any:
        if len(made) == 7:
            raise KeyboardInterrupt
        made.append(values)
        return original(report, **values)

    interrupted.__module__ = original.__module__
    interrupted.__qualname__ = original.__qualname__
    monkeypatch.setattr(rates, "train", interrupted)
    arguments = ["rates", "--preset", "smoke", "--out", str(tmp_path)]
    assert main([*arguments, "--jobs", "1"]) == 130
    assert len(list(tmp_path.glob("parts*/*.json"))) == 7
    monkeypatch.setattr(rates, "train", original)
    settings = RatesSettings(tmp_path, preset="smoke", jobs=1, resume=True)
    with recorded(rates):
        summary = rates.run(settings, Console(file=io.StringIO()))
    assert summary == json.loads((folder / "summary.json").read_text())
    assert not list(tmp_path.glob("parts*"))


def _paper_weight(name: Name, n: int) -> float:
    """w_n = γ_{n+1} λ_{n+1}, from the paper's formulas with the numbers of the run."""
    gamma = 0.1 * (n + 1) ** -0.5
    if name == "sgd":
        return gamma
    if name == "adagrad":  # ε = 1, M = 2
        return gamma * (1.0 if n == 0 else (1.0 + 2.0**2) ** -0.5)
    return gamma * (0.0 if n == 0 else (1.0 + 4.0 * (1.0 - 0.999**n)) ** -0.5)  # δ = 1, ε = 4


@pytest.mark.parametrize("name", OPTIONS)
def test_average_over_r_against_a_slow_reference(name: Name) -> None:
    replicas, iterations = 3, 600  # more than two blocks
    problem = sticky(replicas, seed=1)
    path = torch.rand(iterations + 1, replicas, 2, dtype=torch.float64, generator=rng()) * 6.0
    optimizer = rates.make_optimizer(name, problem.theta)
    weights = torch.tensor([rates.weight(optimizer, n) for n in range(iterations + 1)])
    grid = [10, 255, 256, 257, 600]
    rows = rates.weighted_averages(problem, weights.double(), grid, path)
    for row, N in zip(rows, grid, strict=True):
        for r in range(replicas):
            top = bottom = 0.0
            for n in range(N + 1):
                square = float(problem.gradient(path[n, r : r + 1]).square().sum())
                top += _paper_weight(name, n) * square
                bottom += _paper_weight(name, n)
            assert float(row[r]) == pytest.approx(top / bottom, rel=1e-6)


def test_constants_and_rates() -> None:
    problem, constants = rates.constants()
    assert constants["beta"] == pytest.approx(2.0 * 0.3**2, rel=1e-9)
    assert constants["c1"] == problem.constants.c1 == pytest.approx(4.0 * 2.0**0.5 / 0.3)
    for name in OPTIONS:
        order = rates.rate(name, 0.5)
        assert (order.exponent, order.log_power) == (-0.5, 2.0)
        assert rates.rate(name, 0.0).exponent == 0.0
        # The same ϖ_N as the weights of the run, θ_N included.
        optimizer = rates.make_optimizer(name, torch.zeros(1, 2, requires_grad=True))
        total = sum(rates.weight(optimizer, n) for n in range(51))
        bound = rates.bound(name, 0.5, [50], problem)
        assert bound.weight[0] == pytest.approx(total)
    assert GAMMA.exponent == -0.5


def test_fit() -> None:
    """A power law has its slope without error; noise of replicas gives the error it has."""
    N = rates.log_grid(1000)
    assert N[0] == 10
    assert N[-1] == 1000
    generator = np.random.default_rng(0)
    factor = generator.uniform(0.5, 1.5, 64)
    values = np.array(N)[:, None] ** -0.5 * factor
    assert rates.fit(N, values) == pytest.approx((-0.5, 0.0), abs=1e-12)
    slopes, errors = [], []
    for _ in range(200):
        tilt = -0.5 + 0.1 * generator.standard_normal(64)
        slope, error = rates.fit(N, (np.array(N)[:, None] / 300.0) ** tilt)
        slopes.append(slope)
        errors.append(error)
    # the spread of 200 slopes is known to 5 %, their mean error to about 2 %
    assert np.mean(errors) == pytest.approx(np.std(slopes), rel=0.25)
    assert np.std(slopes) == pytest.approx(0.1 / 8.0, rel=0.25)


def test_recent_leaves_out_what_came_before() -> None:
    """Mean 2 with weight 1, then mean 4 with weight 3: (12 − 2)/2 in between."""
    result = {
        "optimizer": "sgd",
        "alpha": 0.0,
        "N": [10, 20],
        "weights": [1.0, 3.0],
        "values": [[1.0, 3.0], [4.0, 4.0]],
    }
    lines = rates._lines(result, rates.constants()[0])
    assert [line["recent"] for line in lines] == [2.0, 5.0]
    assert lines[0]["standard_error"] == 1.0


def _row(**changes: Any) -> dict[str, Any]:
    row = {
        "optimizer": "sgd",
        "alpha": 0.5,
        "slope": -0.3,
        "slope_se": 0.01,
        "N": 9,
        "predicted_slope": -0.27,
        "bound_holds": True,
        "final_interval": [0.1, 0.2],
        "recent": 0.6,
        "level": 0.6,
    }
    return row | changes


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (_row(), "reached"),
        (_row(slope=-0.26), "reached"),
        (_row(slope=-0.24), "SLOWER"),
        (_row(bound_holds=False), "reached, BOUND FAILS"),
        (_row(alpha=0.0, slope=0.0, final_interval=[0.5, 0.6]), "levels off"),
        (_row(alpha=0.0, slope=-0.3, final_interval=[0.5, 0.6]), "NOT LEVEL"),
        (_row(alpha=0.0, slope=0.0, final_interval=[0.15, 0.6]), "NOT LEVEL"),
        (_row(alpha=0.0, slope=0.0, final_interval=[0.5, 0.6], level=1.0), "NOT LEVEL"),
    ],
)
def test_verdicts(row: dict[str, Any], verdict: str) -> None:
    rows = [row, _row()]
    rates.judge(rows)
    assert rows[0]["verdict"] == verdict
