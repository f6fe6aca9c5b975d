"""`mlmcgrad bound`: its numbers are those of the theory, its errors say what is wrong."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad import theory
from mlmcgrad.cli import main
from mlmcgrad.experiments.bound import run as bound
from mlmcgrad.experiments.bound.figures import draw
from mlmcgrad.experiments.bound.settings import Bound
from mlmcgrad.schedules import power


def _run(folder: Path, **settings: Any) -> tuple[dict[str, Any], str]:
    text = io.StringIO()
    config = Bound(folder, preset="smoke", **settings)
    return bound.run(config, Console(file=text, width=80)), text.getvalue()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "amsgrad"])
def test_numbers_are_those_of_the_theory(optimizer: Any, tmp_path: Path) -> None:
    summary, text = _run(tmp_path, optimizer=optimizer, G=2.0, L=3.0, gap=0.5, delta=0.7)
    c = theory.constants(2, theory.Ergodicity(1.0, 0.5, 0.5))
    problem = theory.Problem(c, G=2.0, L=3.0, gap=0.5)
    schedules: dict[str, Any] = {"gamma": power(0.1, -0.5), "truncation": power(2.0, 0.5)}
    if optimizer == "amsgrad":
        schedules["delta"] = 0.7
    function = getattr(theory.bounds, "general" if optimizer == "sgd" else optimizer)
    expected = function(1000, problem, **schedules)
    assert summary["bound"]["1000"] == pytest.approx(float(expected.total[0]), rel=1e-12)
    assert summary["constants"]["c2"] == c.c2
    assert summary["rate"]["exponent"] == -0.5
    assert summary["rate"]["log_power"] == 2.0
    assert ("b3" in summary["constants"]) == (optimizer == "amsgrad")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["N"] for line in lines[::4]] == [100, 1000, 10_000]
    for line in lines:
        assert sum(line["terms"].values()) == pytest.approx(line["total"])
    for name in ("config.json", "summary.json", "bound.png", "bound.svg"):
        assert (tmp_path / name).stat().st_size > 0
    figure = (tmp_path / "bound.svg").read_bytes()
    (tmp_path / "bound.svg").unlink()
    draw(tmp_path)
    assert (tmp_path / "bound.svg").read_bytes() == figure
    assert "…" not in text


def test_as_printed(tmp_path: Path) -> None:
    corrected, _ = _run(tmp_path, optimizer="amsgrad")
    printed, _ = _run(tmp_path, optimizer="amsgrad", as_printed=True, force=True)
    ratio = corrected["constants"]["b3"] / printed["constants"]["b3"]
    assert ratio == pytest.approx(1.0 / (1.0 - 0.9))


def test_plan(tmp_path: Path) -> None:
    summary, text = _run(tmp_path, accuracy=5.0)
    plan = summary["plan"]
    assert plan["bound"] <= 5.0
    assert plan["saving"] == pytest.approx(plan["average_cost"] / plan["cost"])
    assert plan["saving"] > 1.0
    assert "times as many" in text
    summary, text = _run(tmp_path / "more", accuracy=1e-12)
    assert summary["plan"] is None
    assert "is not reached within" in " ".join(text.split())


def test_matrix(tmp_path: Path) -> None:
    path = tmp_path / "chain.csv"
    path.write_text("# from, to\n0.7, 0.3\n\n0.2 0.8\n")
    summary, _ = _run(tmp_path / "out", matrix=path)
    chain = theory.ergodicity([[0.7, 0.3], [0.2, 0.8]])
    assert summary["constants"]["alpha"] == chain.alpha
    assert summary["constants"]["beta"] == chain.beta
    assert summary["constants"]["mixing_time"] == chain.mixing_time


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"G": -1.0}, "G must be positive"),
        ({"alpha": 1.0}, r"alpha must be in \[0, 1\)"),
        ({"dimension": 0}, "dimension must be an integer from 1"),
        ({"dimension": 10**400}, "dimension must be an integer from 1"),
        ({"gamma_scale": 0.0}, "gamma_scale must be positive"),
        ({"gamma_scale": math.nan}, "gamma_scale must be a finite number, got nan"),
        ({"truncation_exponent": math.inf}, "truncation_exponent must be a finite number"),
        ({"truncation_exponent": 1e300}, "truncation must be positive and finite"),
        ({"G": 1e200}, r"G must be closer to 1, got 1e\+200: the bound is beyond the range"),
        ({"L": 1e300, "optimizer": "amsgrad"}, r"L must be closer to 1, got 1e\+300"),
        ({"beta": 1e-320}, "beta must be closer to 1"),
        ({"G": 1e100, "accuracy": 1.0, "optimizer": "adagrad"}, "G must be closer to 1"),
        ({"gamma_exponent": 1.0}, "gamma"),
        ({"truncation_scale": 0.5}, "truncation must be ≥ 1"),
        ({"optimizer": "amsgrad", "rho1": 1.0}, r"rho1 must be in \[0, 1\)"),
        ({"optimizer": "amsgrad", "delta": 0.0}, "delta must be positive"),
        ({"optimizer": "adagrad", "epsilon": -1.0}, "epsilon must be positive"),
        ({"accuracy": 0.0}, "accuracy must be positive"),
        ({"as_printed": True, "truncation_exponent": 0.0}, "alpha must be positive"),
    ],
)
def test_bad_numbers_are_named(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        _run(tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--preset", "smoke", "--optimizer", "amsgrad", "--G", "2", "--as-printed"]
    assert main(["bound", "--out", str(tmp_path), *arguments]) == 0
    assert "bound.png" in capsys.readouterr().out
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"]["as_printed"] is True
    assert main(["bound", "--out", str(tmp_path), *arguments]) == 0  # the same: replaced
    assert main(["bound", "--out", str(tmp_path), "--preset", "smoke"]) == 2
    assert "optimizer must be 'amsgrad' as" in capsys.readouterr().err
    assert main(["bound", "--out", str(tmp_path), "--preset", "smoke", "--force"]) == 0
    assert json.loads((tmp_path / "old-1" / "config.json").read_text()) == config


@pytest.mark.parametrize("option", ["--seed", "--jobs", "--resume"])
def test_nothing_is_simulated(option: str) -> None:
    with pytest.raises(SystemExit):
        main(["bound", option, "1"])
