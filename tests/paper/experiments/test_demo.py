"""`mlmcgrad demo`: a small run, whose numbers are consistent with the exact ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import mlmcgrad
from mlmcgrad.cli import main
from mlmcgrad.paper.experiments import demo
from mlmcgrad.paper.experiments.folder import Findings
from mlmcgrad.paper.experiments.settings import DemoSettings
from mlmcgrad.problems import finite_chain
from tests.paper.experiments.drawing import recorded

SMALL: dict[str, Any] = {"chains": 2000, "truncation": 8, "budget": 24, "seeds": 2}


def test_smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--{name}={value}" for name, value in SMALL.items()]
    with recorded(demo, draw=True) as drawn:
        assert main(["demo", "--out", str(tmp_path), *arguments]) == 0
    assert drawn == [Findings.read(tmp_path)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("demo.png")
    assert max(len(line) for line in lines[:-1]) <= 80
    for name in ("config.json", "metrics.jsonl", "summary.json", "demo.png", "demo.svg"):
        assert (tmp_path / name).stat().st_size > 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    rows = {row["method"]: row for row in summary["methods"]}
    for row in rows.values():
        assert abs(row["bias"] - row["exact_bias"]) < 5.0 * row["bias_se"]
    assert rows["mlmc"]["exact_bias"] == pytest.approx(rows["average"]["exact_bias"], rel=1e-12)
    assert rows["average"]["cost"] == 8.0
    assert 2.9 < rows["mlmc"]["cost"] < 3.4
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"]["truncation"] == 8
    assert config["versions"]["mlmcgrad"] == mlmcgrad.__version__


def test_another_experiment_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"experiment": "train"}')
    with pytest.raises(ValueError, match="holds a run of train, as its config"):
        demo.run(DemoSettings(tmp_path), Console(quiet=True))
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_minimum() -> None:
    """V is convex: nothing around the minimiser is lower, and other θ are higher."""
    problem = finite_chain()
    lowest = demo.minimum(problem)
    assert lowest < problem.objective()
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        with torch.no_grad():
            problem.theta.copy_(torch.randn(2, dtype=torch.float64, generator=generator))
        assert problem.objective() >= lowest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"truncation": 48}, "truncation must be a power of two ≥ 4, got 48"),
        ({"truncation": 2}, "truncation must be an integer from 4 to .*, got 2"),
        ({"chains": 99}, "chains must be an integer from 100 to .*, got 99"),
        ({"chains": 10**400}, "chains must be an integer from 100 to .*, got 1000"),
        ({"budget": 63}, "budget must be an integer from 64 to .*, got 63"),
        ({"seeds": 0}, "seeds must be an integer from 1 to .*, got 0"),
        ({"seed": -1}, "seed must be an integer from 0 to .*, got -1"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DemoSettings(**settings)
