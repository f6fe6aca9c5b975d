"""`mlmcgrad scaling`: a smoke run end to end, and a run that was interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.experiments.scaling import run as scaling
from mlmcgrad.experiments.scaling.settings import Scaling
from mlmcgrad.runs import pool as parallel

QUIET = Console(quiet=True)


def test_smoke_run(tmp_path: Path) -> None:
    summary = scaling.run(Scaling(preset="smoke", out=tmp_path, jobs=1), QUIET)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    for name in ("config.json", "metrics.jsonl", "scaling.png", "scaling.svg"):
        assert (tmp_path / name).stat().st_size > 0
    assert not (tmp_path / "parts").exists()
    for key in ("bias_slope", "second_moment_r2", "third_moment_slope", "cost_ratio"):
        assert set(summary[key]) == set(scaling.KERNELS)
    for name in scaling.KERNELS:
        slope, error = summary["bias_slope"][name], summary["bias_slope_se"][name]
        assert abs(slope + 1.0) < 5.0 * error + 0.1  # short chains: not yet asymptotic
        assert summary["second_moment_r2"][name] > 0.95
        assert summary["cost_ratio"][name] == pytest.approx(1.0, abs=0.05)
        assert summary["average_cost_slope"][name] == pytest.approx(1.0)
        assert summary["consistency"][name] < 1.0


def test_an_interrupted_run_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "KERNELS", ("rwmh", "mala"))
    monkeypatch.setattr(scaling, "_print", lambda *_: None)
    monkeypatch.setattr(scaling, "draw", lambda *_: None)
    whole = scaling.run(Scaling(preset="smoke", out=tmp_path / "a", jobs=1), QUIET)
    original, calls = scaling.measure, []

    def interrupted(report: parallel.Report, **values: Any) -> Any:
        calls.append(values)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(report, **values)

    interrupted.__module__ = original.__module__
    monkeypatch.setattr(scaling, "measure", interrupted)
    settings = Scaling(preset="smoke", out=tmp_path / "b", jobs=1)
    with pytest.raises(KeyboardInterrupt):
        scaling.run(settings, QUIET)
    assert len(list((tmp_path / "b").glob("parts/*.json"))) == 2
    again = scaling.run(settings, QUIET)
    assert len(calls) == 3 + 2  # the two that were finished are not done again
    assert again == whole
