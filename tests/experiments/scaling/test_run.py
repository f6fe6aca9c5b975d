"""`mlmcgrad scaling`: a smoke run end to end, and a run that was interrupted."""

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.experiments.scaling import run as scaling
from mlmcgrad.experiments.scaling.figures import draw
from mlmcgrad.experiments.scaling.settings import Scaling
from mlmcgrad.runs.pool import Report

QUIET = Console(quiet=True)


def test_smoke_run(tmp_path: Path) -> None:
    text = io.StringIO()
    settings = Scaling(tmp_path, preset="smoke", jobs=1)
    summary = scaling.run(settings, Console(file=text, width=80))
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    for name in ("config.json", "metrics.jsonl", "scaling.png", "scaling.svg"):
        assert (tmp_path / name).stat().st_size > 0
    assert not list(tmp_path.glob("parts*"))
    assert "…" not in text.getvalue()
    for key in ("bias_slope", "second_moment_r2", "third_moment_slope", "cost_ratio"):
        assert set(summary[key]) == set(scaling.KERNELS)
    for name in scaling.KERNELS:
        slope, error = summary["bias_slope"][name], summary["bias_slope_se"][name]
        assert abs(slope + 1.0) < 5.0 * error + 0.1  # short chains: not yet asymptotic
        assert summary["second_moment_r2"][name] > 0.95
        assert summary["cost_ratio"][name] == pytest.approx(1.0, abs=0.05)
        assert summary["average_cost_slope"][name] == pytest.approx(1.0)
        assert summary["consistency"][name] < 1.0

    figure = (tmp_path / "scaling.svg").read_bytes()
    (tmp_path / "scaling.svg").unlink()
    draw(tmp_path)
    assert (tmp_path / "scaling.svg").read_bytes() == figure


def test_an_interrupted_run_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "KERNELS", ("rwmh", "mala"))
    whole = scaling.run(Scaling(tmp_path / "a", preset="smoke", jobs=1), QUIET)
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
        Scaling(jobs=0)
