"""A run folder belongs to one experiment with its settings, and a run of minutes is not lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.experiments.bound.settings import Bound
from mlmcgrad.experiments.folder import Findings, replace, simulate
from mlmcgrad.experiments.scaling.settings import Scaling
from mlmcgrad.runs.folder import claim
from mlmcgrad.runs.pool import Report

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
            raise KeyboardInterrupt
        calls.append(value)
        return 2.0 * value

    return simulate(Scaling(folder, jobs=1, **settings), double, ARGUMENTS, _summarise, QUIET)


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_findings_are_written_and_read(tmp_path: Path) -> None:
    calls: list[float] = []
    findings = _simulate(tmp_path, calls)
    assert findings.summary == {"one": 2.0, "two": 4.0}
    assert Findings.read(tmp_path) == findings
    assert calls == [1.0, 2.0]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["experiment"] == "scaling"
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "summary.json",
    }


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    _simulate(tmp_path)
    before = _content(tmp_path)
    with pytest.raises(ValueError, match=rf"{tmp_path} already holds a run of scaling.*--resume"):
        _simulate(tmp_path)
    assert _content(tmp_path) == before


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


def test_resume_only_reads_a_complete_run(tmp_path: Path) -> None:
    findings = _simulate(tmp_path)
    before = _content(tmp_path)
    assert _simulate(tmp_path, stop_before=0, resume=True) == findings
    assert _content(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"seed must be 0 as in the run in .*, got 1; resume with the same settings"),
        ({"preset": "smoke"}, r"preset must be 'quick' as in the run in .*, got 'smoke'"),
    ],
)
def test_resume_needs_the_same_settings(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    _simulate(tmp_path)
    before = _content(tmp_path)
    with pytest.raises(ValueError, match=message):
        _simulate(tmp_path, resume=True, **changes)
    assert _content(tmp_path) == before


def test_a_short_run_replaces_its_own_kind_only(tmp_path: Path) -> None:
    replace(Bound(tmp_path / "bound"))
    Findings([], {"complete": True}).write(tmp_path / "bound")
    replace(Bound(tmp_path / "bound", G=2.0))
    assert json.loads((tmp_path / "bound" / "config.json").read_text())["settings"]["G"] == 2.0
    # A summary beside the settings of another run would be wrong, if this run were interrupted.
    assert not (tmp_path / "bound" / "summary.json").exists()

    _simulate(tmp_path / "scaling")
    before = _content(tmp_path / "scaling")
    with pytest.raises(ValueError, match=r"scaling holds a run of scaling; name another folder"):
        replace(Bound(tmp_path / "scaling"))
    assert _content(tmp_path / "scaling") == before


@pytest.mark.parametrize("resume", [False, True])
def test_another_experiment_is_refused(resume: bool, tmp_path: Path) -> None:
    replace(Bound(tmp_path))
    before = _content(tmp_path)
    with pytest.raises(ValueError, match=r"holds a run of bound; name another folder with --out"):
        _simulate(tmp_path, resume=resume)
    assert _content(tmp_path) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json"])
def test_files_without_their_config_are_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}\n")
    with pytest.raises(ValueError, match="holds a run of an unknown command"):
        claim(tmp_path, "scaling", resume=True)


def test_other_files_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert claim(tmp_path, "scaling", resume=False) == {}
    assert claim(tmp_path / "absent", "scaling", resume=False) == {}
