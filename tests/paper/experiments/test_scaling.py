"""`mlmcgrad scaling`: a smoke run end to end, and a run that was interrupted."""

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.paper.experiments import scaling
from mlmcgrad.paper.experiments.folder import Findings
from mlmcgrad.paper.experiments.settings import ScalingSettings
from mlmcgrad.paper.runs.pool import Report
from tests.paper.experiments.drawing import recorded

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_STEPS", 100)  # autocorrelation times of these kernels are small


def test_smoke_run(tmp_path: Path) -> None:
    text = io.StringIO()
    settings = ScalingSettings(tmp_path, preset="smoke", jobs=1)
    with recorded(scaling, draw=True) as drawn:
        summary = scaling.run(settings, Console(file=text, width=80))
    assert drawn == [Findings.read(tmp_path)]
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    for name in ("config.json", "metrics.jsonl", "scaling.png", "scaling.svg"):
        assert (tmp_path / name).stat().st_size > 0
    assert not list(tmp_path.glob("parts*"))
    assert "…" not in text.getvalue()
    assert list(summary) == list(scaling.KERNELS)
    for numbers in summary.values():
        mlmc, average = numbers["mlmc"], numbers["average"]
        bias = mlmc["fits"]["bias"]
        assert abs(bias["slope"] + 1.0) < 5.0 * bias["slope_se"] + 0.1  # short: not yet asymptotic
        assert mlmc["fits"]["second_moment"]["r2"] > 0.95
        assert mlmc["cost_ratio"] == pytest.approx(1.0, abs=0.05)
        assert average["fits"]["cost"]["slope"] == pytest.approx(1.0)
        assert mlmc["consistency"] < 1.0


def test_an_interrupted_run_resumes_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "KERNELS", ("rwmh", "mala"))
    small = dict.fromkeys(scaling.KERNELS, scaling.ScalingEffort(2_000, 50, 5))
    monkeypatch.setitem(scaling.EFFORT, "smoke", small)
    monkeypatch.setattr(scaling, "draw", lambda folder, findings: folder / "scaling.png")
    whole = scaling.run(ScalingSettings(tmp_path / "a", preset="smoke", jobs=1), QUIET)
    original, calls = scaling.measure, []

    def interrupted(report: Report, **values: Any) -> Any:
        calls.append(values)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return original(report, **values)

    interrupted.__module__ = original.__module__
    interrupted.__qualname__ = original.__qualname__
    monkeypatch.setattr(scaling, "measure", interrupted)
    command = ["scaling", "--preset", "smoke", "--jobs", "1", "--out", str(tmp_path / "b")]
    assert main(command) == 130
    assert "continue with the same command and --resume" in capsys.readouterr().err
    assert len(list((tmp_path / "b").glob("parts*/*.json"))) == 2
    assert main(command) == 2
    assert "continue it with --resume, name another folder" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    assert len(calls) == 3 + 2  # the two that were finished are not done again
    assert json.loads((tmp_path / "b" / "summary.json").read_text()) == whole
    assert main([*command, "--resume"]) == 0  # complete: shown again
    assert "scaling.png" in capsys.readouterr().out
    assert len(calls) == 3 + 2


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="jobs must be an integer from 1 to 1024, got 0"):
        ScalingSettings(jobs=0)
