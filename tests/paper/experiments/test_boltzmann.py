"""`mlmcgrad boltzmann`: trainings, paired differences, tables, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.cli import main
from mlmcgrad.estimators import MLMC, MLMCSum
from mlmcgrad.paper.experiments import boltzmann
from mlmcgrad.paper.experiments.boltzmann import CONTINUATION, LABELS, STEPS, TRUNCATION
from mlmcgrad.paper.experiments.settings import BoltzmannSettings
from tests.paper.experiments.drawing import recorded


def _train(method: str, iterations: int = 10, seed: int = 0, chains: int = 30) -> dict[str, Any]:
    options: dict[str, Any] = {"iterations": iterations, "chains": chains, "seed": seed}
    return boltzmann.train(lambda share: None, data="bars", method=method, **options)


def test_methods_of_the_comparison_make_seven_steps() -> None:
    assert MLMC(TRUNCATION).expected_length() == pytest.approx(STEPS, abs=0.01)
    summed = MLMCSum(TRUNCATION, CONTINUATION)
    assert summed.expected_length() == pytest.approx(STEPS, abs=0.01)
    for method, steps in (("cd-1", 1), ("cd-7", 7), ("pcd-7", 7), ("average", 128)):
        assert _train(method, iterations=2)["curve"][-1]["steps"] == 2 * steps


def test_the_exact_gradient_ascends_and_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same start, with many chains, every method climbs for a while as it does."""
    monkeypatch.setattr(boltzmann, "_CURVE", 4)
    exact = [point["last"] for point in _train("exact", 40)["curve"]]
    assert exact == sorted(exact)
    assert exact[-1] > exact[0] + 0.02
    for method in LABELS:
        curve = _train(method, 40, chains=200)["curve"]
        assert curve[-1]["last"] == pytest.approx(exact[-1], abs=0.1), method


def test_runs_start_at_the_same_machine_and_repeat() -> None:
    first, again, other = _train("mlmc"), _train("mlmc"), _train("mlmc", seed=1)

    def values(run: dict[str, Any]) -> list[float]:
        return [point["last"] for point in run["curve"]]

    assert values(first) == values(again)
    assert values(first) != values(other)
    # CD and the exact gradient: nearly the same machine after one small step.
    close = _train("cd-1", 1)["curve"][0]["last"], _train("exact", 1)["curve"][0]["last"]
    assert close[0] == pytest.approx(close[1], abs=0.05)


def test_the_averaged_iterate() -> None:
    """Weights of θ_n in the average of N: with η = 3, proportional to n(n + 1)(n + 2)."""
    curve = _train("exact", 1)["curve"]
    assert curve[0]["averaged"] == pytest.approx(curve[0]["last"])  # one iterate: itself
    weights = [1.0]
    for n in range(2, 101):
        share = 4.0 / (n + 3.0)
        weights = [w * (1.0 - share) for w in weights] + [share]
    assert sum(weights) == pytest.approx(1.0)
    assert weights[49] / weights[99] == pytest.approx(50 * 51 * 52 / (100 * 101 * 102))
    assert sum(weights[90:]) == pytest.approx(0.335, abs=0.01)


def _part(method: str, seed: int, ends: float, steps: float) -> dict[str, Any]:
    curve = [
        {"iteration": n, "steps": steps * n, "seconds": 0.1 * n, "last": ends * n, "averaged": 0.0}
        for n in (1, 2)
    ]
    return {"data": "bars", "method": method, "seed": seed, "curve": curve, "samples": [[0] * 16]}


def test_differences_are_paired_and_taken_where_both_curves_are() -> None:
    parts = {}
    for seed, shift in enumerate((0.0, 5.0, -3.0)):
        for method in LABELS:
            ends = -2.0 + shift if method == "mlmc" else -3.0 + shift
            steps = {"mlmc": 7.0, "ucd": 14.0, "exact": 0.0}.get(method, 7.0)
            parts[f"{method} {seed}"] = _part(method, seed, ends, steps)
    found = boltzmann.summarise(parts).summary["data"]["bars"]
    differences = found["differences"]
    assert "mlmc" not in differences
    assert differences["cd-7"]["last"]["iterations"]["mean"] == pytest.approx(32 * 2.0)
    low, high = differences["cd-7"]["last"]["iterations"]["interval"]
    assert high - low == pytest.approx(0.0, abs=1e-9)  # the shifts cancel
    # UCD has made 14 steps after one iteration: MLMC at its end (14 steps) minus that.
    expected = sum(2 * (-2.0 + s) - (-3.0 + s) for s in (0.0, 5.0, -3.0)) / 3
    assert differences["ucd"]["last"]["steps"]["mean"] == pytest.approx(32 * expected)
    assert "steps" not in differences["exact"]["last"]
    assert found["methods"]["mlmc"]["last"]["mean"] == pytest.approx(32 * 2 * (-2.0 + 2.0 / 3))
    assert found["methods"]["ucd"]["steps_an_iteration"] == pytest.approx(14.0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(boltzmann.EFFORT["smoke"], "bars", boltzmann.BoltzmannEffort(4, 2, 1, 20))
        options = ["boltzmann", "--preset", "smoke", "--data", "bars", "--jobs", "1"]
        assert main([*options, "--out", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        with recorded(boltzmann) as drawn:  # it is complete: this only draws and prints again
            assert main([*options, "--out", str(tmp_path), "--resume"]) == 0
        assert len(drawn) == 1
    assert "PCD + MLMC" in said
    assert all(len(line) <= 80 for line in said.splitlines()[:-1])
    names = {path.name for path in tmp_path.iterdir()}
    expected = {"boltzmann.png", "boltzmann.svg", "samples.png", "samples.svg", "table.md"}
    assert expected | {"config.json", "metrics.jsonl", "summary.json"} <= names
    summary = json.loads((tmp_path / "summary.json").read_text())
    methods = summary["data"]["bars"]["methods"]
    assert set(methods) == set(LABELS)
    seeds = {method: found["seeds"] for method, found in methods.items()}
    assert (seeds["mlmc"], seeds["exact"], seeds["average"]) == (2, 1, 1)
    table = (tmp_path / "table.md").read_text()
    assert all(f"| {label} |" in table for label in LABELS.values())


def test_data_are_named_once() -> None:
    for data in ((), ("bars", "bars")):
        with pytest.raises(ValueError, match="data must name each choice once"):
            BoltzmannSettings(data=data)


def test_every_column_has_its_numbers() -> None:
    """Two points of a curve by hand: totals over 32 rows, differences from MLMC seed by seed."""
    parts = {}
    for method in LABELS:
        last, averaged = {"mlmc": (-4.0, -3.0), "ucd": (-5.0, -2.75)}.get(method, (-6.0, -6.0))
        for seed in range(2):
            curve = [
                {
                    "iteration": n,
                    "steps": (7.0 if method == "mlmc" else 3.5) * n,
                    "seconds": 0.25 * n,
                    "last": last / n,
                    "averaged": averaged / n,
                }
                for n in (1, 2)
            ]
            parts[f"{method} {seed}"] = {
                "data": "bars",
                "method": method,
                "seed": seed,
                "curve": curve,
                "samples": [[0] * 16],
            }
    lines = boltzmann.markdown(boltzmann.summarise(parts).summary).splitlines()
    (row,) = [line for line in lines if line.startswith("| UCD |")]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "UCD",
        "3.5",
        "-80.0±0.0",  # 32 · −5/2
        "-44.0±0.0",  # 32 · −2.75/2
        "16.0±0.0",  # 32 · (−4/2 + 5/2)
        "-48.0±0.0",  # MLMC has made the 7 steps after one iteration: 32 · (−4 + 5/2)
        "-52.0±0.0",  # 32 · (−3 + 2.75/2)
        "250.0",
    ]
    (ours,) = [line for line in lines if line.startswith("| MLMC |")]
    assert ours.count("| –") == 3  # no differences from itself
    header = next(line for line in lines if line.startswith("| method"))
    assert header.count("|") == row.count("|")
