"""A run folder belongs to one experiment with its settings, and a run of minutes is not lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.paper.experiments.folder import Findings, replaced, simulated
from mlmcgrad.paper.experiments.settings import BoundSettings, ScalingSettings
from mlmcgrad.paper.runs.folder import locked
from mlmcgrad.paper.runs.pool import Report
from tests.folders import content

QUIET = Console(quiet=True)
ARGUMENTS = {name: {"value": value} for name, value in (("one", 1.0), ("two", 2.0))}


def _summarise(results: dict[str, Any]) -> Findings:
    return Findings([{"name": name, "double": double} for name, double in results.items()], results)


def _simulate(
    folder: Path, calls: list[float] | None = None, *, stop_before: int = 9, **settings: Any
) -> Findings:
    """Double two values; note which ones, and be interrupted before a chosen call."""
    calls = [] if calls is None else calls

    def double(report: Report, value: float) -> float:
        if len(calls) == stop_before:
            signal.raise_signal(signal.SIGINT)
        calls.append(value)
        return 2.0 * value

    chosen = ScalingSettings(folder, jobs=1, **settings)
    with simulated(chosen, double, ARGUMENTS, _summarise, QUIET) as findings:
        assert findings.summary["one"] == findings.rows[0]["double"]
    return findings


def test_findings_are_written_and_read(tmp_path: Path) -> None:
    calls: list[float] = []
    findings = _simulate(tmp_path, calls)
    assert findings.summary == {"one": 2.0, "two": 4.0}
    assert Findings.read(tmp_path) == findings
    assert calls == [1.0, 2.0]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["experiment"] == "scaling"
    assert set(content(tmp_path)) == {"config.json", "metrics.jsonl", "summary.json"}


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    _simulate(tmp_path)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=rf"{tmp_path} already holds a run of scaling.*--resume"):
        _simulate(tmp_path)
    assert content(tmp_path) == before


def test_resume_starts_in_an_empty_folder(tmp_path: Path) -> None:
    assert _simulate(tmp_path / "new", resume=True).summary == {"one": 2.0, "two": 4.0}


def test_resume_does_only_what_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="continue with the same command and --resume"):
        _simulate(tmp_path, stop_before=1)
    assert not (tmp_path / "summary.json").exists()
    with pytest.raises(ValueError, match="already holds a run of scaling"):
        _simulate(tmp_path)
    calls: list[float] = []
    assert _simulate(tmp_path, calls, resume=True).summary == {"one": 2.0, "two": 4.0}
    assert calls == [2.0]


def test_resume_removes_the_parts_of_a_run_that_was_killed_before_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("mlmcgrad.paper.experiments.folder.forget", lambda *_: None)
        _simulate(tmp_path)
    assert set(content(tmp_path)) > {"config.json", "metrics.jsonl", "summary.json"}
    _simulate(tmp_path, resume=True)
    assert set(content(tmp_path)) == {"config.json", "metrics.jsonl", "summary.json"}


def test_resume_only_reads_a_complete_run(tmp_path: Path) -> None:
    findings = _simulate(tmp_path)
    before = content(tmp_path)
    assert _simulate(tmp_path, stop_before=0, resume=True) == findings
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"seed must be 0 as .*config.json says, got 1; .*--out.*--force"),
        ({"preset": "smoke"}, r"preset must be 'quick' as .*config.json says, got 'smoke'"),
    ],
)
def test_resume_needs_the_same_settings(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    _simulate(tmp_path)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=message):
        _simulate(tmp_path, resume=True, **changes)
    assert content(tmp_path) == before


@pytest.mark.parametrize("damage", [b"{", b"[]", b"{}", b"2.0 altered"])
def test_a_damaged_part_is_computed_again(damage: bytes, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _simulate(tmp_path, stop_before=1)
    path = tmp_path / "parts" / "one.json"
    altered = path.read_bytes().replace(b"2.0", b"7.0")
    path.write_bytes(altered if b"altered" in damage else damage)
    calls: list[float] = []
    assert _simulate(tmp_path, calls, resume=True).summary == {"one": 2.0, "two": 4.0}
    assert calls == [1.0, 2.0]


def test_a_part_of_an_earlier_version_is_made_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _simulate(tmp_path, stop_before=1)
    path = tmp_path / "parts" / "one.json"
    record = json.loads(path.read_text())
    del record["sha256"]
    path.write_text(json.dumps(record))
    calls: list[float] = []
    assert _simulate(tmp_path, calls, resume=True).summary == {"one": 2.0, "two": 4.0}
    assert calls == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("summary.json", "{", "summary.json is damaged: it is not JSON"),
        ("summary.json", "{}", r"summary.json in .* is damaged \(KeyError: 'one'\)"),
        ("metrics.jsonl", "\n", "metrics.jsonl is damaged: line 1 is not JSON"),
        ("metrics.jsonl", "", r"metrics.jsonl or summary.json in .* is damaged \(IndexError"),
    ],
)
def test_damaged_findings_are_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    findings = _simulate(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{said}.*remove summary.json and repeat"):
        _simulate(tmp_path, resume=True)
    (tmp_path / "summary.json").unlink()
    assert _simulate(tmp_path, resume=True) == findings


def _replace(folder: Path, **settings: Any) -> None:
    with replaced(BoundSettings(folder, **settings), folder):
        Findings([], {"complete": True}).write(folder)


def test_a_short_run_replaces_one_with_the_same_settings(tmp_path: Path) -> None:
    _replace(tmp_path)
    before = content(tmp_path)
    with replaced(BoundSettings(tmp_path), tmp_path):
        # If this run were interrupted, a summary would say that it is complete.
        assert not (tmp_path / "summary.json").exists()
        Findings([], {"complete": True}).write(tmp_path)
    assert content(tmp_path) == before
    with pytest.raises(ValueError, match=r"^G must be 1.0 as .*json says, got 2.0; .*--force"):
        _replace(tmp_path, G=2.0)
    assert content(tmp_path) == before


def test_force_keeps_the_earlier_run(tmp_path: Path) -> None:
    _replace(tmp_path)
    (tmp_path / "bound.png").write_bytes(b"its figure")
    before = content(tmp_path)
    _replace(tmp_path, G=2.0, force=True)
    assert content(tmp_path / "old-1") == before
    assert json.loads((tmp_path / "config.json").read_text())["settings"]["G"] == 2.0
    assert not (tmp_path / "bound.png").exists()
    first = content(tmp_path)
    _simulate(tmp_path, force=True)
    assert content(tmp_path / "old-1") == before
    assert content(tmp_path / "old-2") == {k: v for k, v in first.items() if "old" not in k}
    assert _simulate(tmp_path, resume=True).summary == {"one": 2.0, "two": 4.0}


@pytest.mark.parametrize("resume", [False, True])
def test_another_experiment_is_refused(resume: bool, tmp_path: Path) -> None:
    _replace(tmp_path / "bound")
    before = content(tmp_path)
    with pytest.raises(ValueError, match=r"holds a run of bound, as its config"):
        _simulate(tmp_path / "bound", resume=resume)
    assert content(tmp_path) == before
    _simulate(tmp_path / "scaling")
    before = content(tmp_path)
    with pytest.raises(ValueError, match=r"scaling holds a run of scaling, as its config"):
        _replace(tmp_path / "scaling")
    assert content(tmp_path) == before


def test_one_process_at_a_time(tmp_path: Path) -> None:
    _simulate(tmp_path / "scaling")
    with locked(tmp_path / "scaling"), pytest.raises(ValueError, match="another process is using"):
        _simulate(tmp_path / "scaling", resume=True)
    with locked(tmp_path / "bound"), pytest.raises(ValueError, match="another process is using"):
        _replace(tmp_path / "bound")
    chosen = ScalingSettings(tmp_path / "scaling", jobs=1, resume=True)
    with (
        simulated(chosen, lambda *_: None, ARGUMENTS, _summarise, QUIET),  # figures are drawn here
        pytest.raises(ValueError, match="another process is using"),
    ):
        _simulate(tmp_path / "scaling", resume=True)
