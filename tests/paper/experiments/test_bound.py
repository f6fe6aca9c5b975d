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
from mlmcgrad.paper.experiments import bound
from mlmcgrad.paper.experiments.folder import Findings
from mlmcgrad.paper.experiments.settings import BoundSettings
from mlmcgrad.schedules import power
from tests.paper.experiments.drawing import recorded


def _run(folder: Path, *, draw: bool = False, **settings: Any) -> tuple[dict[str, Any], str]:
    text = io.StringIO()
    config = BoundSettings(folder, preset="smoke", **settings)
    with recorded(bound, draw=draw) as drawn:
        summary = bound.run(config, Console(file=text, width=80))
    assert drawn == [Findings.read(folder)]
    return summary, text.getvalue()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "amsgrad"])
def test_numbers_are_those_of_the_theory(optimizer: Any, tmp_path: Path) -> None:
    summary, text = _run(tmp_path, optimizer=optimizer, G=2.0, L=3.0, gap=0.5, delta=0.7)
    c = theory.constants(2, theory.Ergodicity(1.0, 0.5, 0.5))
    problem = theory.Assumptions(c, G=2.0, L=3.0, gap=0.5)
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
    assert "…" not in text


def test_equal_findings_give_the_same_figure(tmp_path: Path) -> None:
    _run(tmp_path, optimizer="amsgrad", draw=True)
    for name in ("config.json", "summary.json", "bound.png", "bound.svg"):
        assert (tmp_path / name).stat().st_size > 0
    figure = (tmp_path / "bound.svg").read_bytes()
    (tmp_path / "bound.svg").unlink()
    bound.draw(tmp_path, Findings.read(tmp_path))
    assert (tmp_path / "bound.svg").read_bytes() == figure


def test_as_printed(tmp_path: Path) -> None:
    corrected, _ = _run(tmp_path, optimizer="amsgrad")
    printed, _ = _run(tmp_path, optimizer="amsgrad", as_printed=True, force=True)
    ratio = corrected["constants"]["b3"] / printed["constants"]["b3"]
    assert ratio == pytest.approx(1.0 / (1.0 - 0.9))


def test_recommendation(tmp_path: Path) -> None:
    summary, text = _run(tmp_path, accuracy=5.0)
    found = summary["recommendation"]
    assert found["bound"] <= 5.0
    assert found["saving"] == pytest.approx(found["average_cost"] / found["expected_cost"])
    assert found["saving"] > 1.0
    assert "times as many" in text
    summary, text = _run(tmp_path / "more", accuracy=1e-12)
    assert summary["recommendation"] is None
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


def test_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound, "draw", lambda folder, findings: folder / "bound.png")
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


def test_separators_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text("# from, to\n0.7, 0.3\n\n0.2;\t0.8  # sticky\n")
    assert bound.read_matrix(path).tolist() == [[0.7, 0.3], [0.2, 0.8]]
    path.write_text("0.7, 0.3\n0.2, 0.8\n", encoding="utf-8-sig")  # as spreadsheets write it
    assert bound.read_matrix(path).tolist() == [[0.7, 0.3], [0.2, 0.8]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5 0.5\n0.5 x\n", "cannot use .*bad.txt: could not convert string 'x'"),
        ("0.5 0.5\n1.0\n", "the number of columns changed from 2 to 1 at row 2"),
        ("0.5 0.5\n", "must hold a square matrix .*, got 1 rows of 2 numbers"),
        ("", "must hold a square matrix .*, got 0 rows"),
        ("1\n" * 1025, "a square matrix of at most 1024 rows, got 1025 rows"),
        ("nan 1\n0.5 0.5\n", r"P must be finite and non-negative, got P\[0, 0\] = nan"),
        ("1e999 1\n0.5 0.5\n", r"P must be finite and non-negative, got P\[0, 0\] = inf"),
        ("0.5 0.6\n0.5 0.5\n", "not row-stochastic: row 0 sums to 1.1"),
        ("0 1\n1 0\n", "not aperiodic: it returns to a state only after"),
        ("1 0\n0 1\n", "not irreducible"),
    ],
)
def test_bad_matrices(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        bound.run(BoundSettings(tmp_path / "out", matrix=path), Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_unreadable_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bound", "--out", str(tmp_path / "out"), "--matrix"]
    assert main([*arguments, str(tmp_path / "absent")]) == 2
    assert "matrix: cannot use" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert main([*arguments, str(tmp_path / "binary")]) == 2
    assert "codec can't decode" in capsys.readouterr().err
