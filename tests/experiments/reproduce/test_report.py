"""The report: page, summary, Markdown and figures from run folders alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.experiments.reproduce import markdown, report
from mlmcgrad.experiments.reproduce.findings import find
from mlmcgrad.experiments.reproduce.gather import gather
from mlmcgrad.experiments.reproduce.sentences import paper
from mlmcgrad.experiments.reproduce.settings import Report
from mlmcgrad.runs.lock import locked
from tests.experiments.reproduce import fabricated
from tests.folders import content

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reproduction and its report."""
    folder = fabricated.write(tmp_path_factory.mktemp("report") / "digits", seeds=2)
    report.write([gather(folder)], folder)
    return folder


def test_everything_is_written_from_the_same_findings(folder: Path) -> None:
    (findings,) = find([gather(folder)])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == {"reproductions": [json.loads(json.dumps(findings.record()))]}
    assert (folder / "claims.md").read_text() == markdown.page([findings])
    assert (folder / "figures" / "main.png").exists()
    page = (folder / "report.html").read_text()
    assert str(folder) not in page  # a folder of this machine is nobody's business
    assert f"All {len(findings.claims)} claims" in page


def test_a_copied_folder_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copy)
    before = {path.relative_to(copy): path.read_bytes() for path in _made(copy)}
    assert len(before) == 3 + 2 * 9 + 1
    for path in _made(copy):
        path.unlink()
    report.write([gather(copy)], copy)
    assert {path.relative_to(copy): path.read_bytes() for path in _made(copy)} == before


def _made(folder: Path) -> list[Path]:
    names = ("report.html", "summary.json", "claims.md")
    return [*(folder / name for name in names), *(folder / "figures").rglob("*.*")]


def test_several_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    other = fabricated.write(tmp_path / "cifar10", "cifar10", methods=("br", "mlmc"), seeds=1)
    report.write([gather(folder), gather(other)], tmp_path / "both")
    page = (tmp_path / "both" / "report.html").read_text()
    assert page.count("<h3>digits</h3>") == page.count("<h3>CIFAR-10</h3>") == 7
    summary = json.loads((tmp_path / "both" / "summary.json").read_text())
    assert [part["name"] for part in summary["reproductions"]] == ["digits", "CIFAR-10"]
    for name in ("digits", "cifar-10"):
        assert (tmp_path / "both" / "figures" / name / "main.png").exists()
    text = (tmp_path / "both" / "claims.md").read_text()
    assert text.index("# Claims on digits") < text.index("# Claims on CIFAR-10")


def test_two_of_one_dataset(tmp_path: Path) -> None:
    folders = [
        fabricated.write(tmp_path / name, methods=("br",), seeds=1, pictures=False)
        for name in ("first", "second")
    ]
    path = report.run(Report(tuple(folders), out=tmp_path / "both"), QUIET)
    assert "<h3>digits (first)</h3>" in path.read_text()
    assert (tmp_path / "both" / "figures" / "digits--second" / "main.png").exists()


def test_a_report_is_not_written_over_another_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"experiment": "train"}')
    (tmp_path / "summary.json").write_text("of the training")
    with pytest.raises(ValueError, match="holds a run of train, as its config"):
        report.run(Report((folder,), out=tmp_path), QUIET)
    assert (tmp_path / "summary.json").read_text() == "of the training"


def _reports(folder: Path, out: Path, **settings: Any) -> dict[str, bytes]:
    report.run(Report((folder,), out=out, **settings), QUIET)
    return content(out)


def test_a_report_of_its_own_folder_belongs_to_what_it_reports(
    folder: Path, tmp_path: Path
) -> None:
    other = fabricated.write(tmp_path / "other", methods=("br",), seeds=1, pictures=False)
    first = _reports(other, tmp_path / "out")
    assert _reports(other, tmp_path / "out") == first  # made again in place
    with pytest.raises(ValueError, match=r"^folders must be .* as .*config.json says, got .*force"):
        _reports(folder, tmp_path / "out")
    assert content(tmp_path / "out") == first
    _reports(folder, tmp_path / "out", force=True)
    assert content(tmp_path / "out" / "old-1") == first


def test_figures_of_the_user_are_kept(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "main.png").write_bytes(b"mine")
    with pytest.raises(ValueError, match="holds figures, but no config"):
        report.run(Report((folder,), out=tmp_path), QUIET)
    assert content(tmp_path) == {"figures/main.png": b"mine"}


def test_force_never_moves_what_is_reported(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    before = content(copy)
    for settings in (Report((copy,), force=True), Report((copy,), out=copy / ".", force=True)):
        report.run(settings, QUIET)
        assert content(copy) == before
    with pytest.raises(ValueError, match="is one of the reproductions and has a report of its own"):
        report.run(Report((copy, folder), out=copy, force=True), QUIET)
    assert content(copy) == before


@pytest.mark.parametrize("name", ["copy", "elsewhere"])
def test_one_process_at_a_time(folder: Path, name: str, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with locked(tmp_path / name), pytest.raises(ValueError, match="another process is using"):
        report.run(Report((copy,), out=tmp_path / name), QUIET)


def test_markdown_has_every_claim_once(folder: Path) -> None:
    (findings,) = find([gather(folder)])
    text = markdown.page([findings])
    assert text.startswith(
        "# Claims on digits\n\n`mlmcgrad reproduce --dataset digits`, 5 min 12 s on"
    )
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [line for line in tables if line.count(" | ") == 1]  # others: what was spent
    quoted = {paper(claim) for claim in findings.claims}
    assert len(rows) == len(findings.claims) + 2 * len(quoted)
    assert all(f"“{sentence}”" in text for sentence in quoted if sentence)
    (claim,) = (
        c
        for c in findings.claims
        if (c.quantity, c.baseline) == ("decay", "br") and c.method == "mlmc"
    )
    (row,) = (r for r in rows if "slope of log ‖∇V‖² against log n, MLMC-IWAE" in r)
    assert claim.verdict in row
    # The paper says that the rate is matched; that it falls faster is counted as well.
    assert "falls at least as fast as (log n)²/√n" in text


def test_little_is_enough(tmp_path: Path) -> None:
    """No record of time, commit or versions; a single seed; no test of the gradient."""
    folder = fabricated.write(tmp_path / "r", methods=("br", "mlmc"), seeds=1, pictures=False)
    about = json.loads((folder / "config.json").read_text())
    for key in ("seconds", "finished", "cores", "versions", "command"):
        del about[key]
    about["commit"] = None
    (folder / "config.json").write_text(json.dumps(about))
    for path in folder.glob("runs/*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{k: v for k, v in row.items() if "gradient" not in k} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (findings,) = report.write([gather(folder)], folder)
    page = (folder / "report.html").read_text()
    assert page.count("not recorded") == 6
    assert "unknown" in page
    assert [row.gradient for row in findings.final] == [None, None]
    assert {claim.quantity for claim in findings.claims} == {"nll", "budget"}


def test_without_any_complete_run_there_is_still_a_report(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br",), seeds=1)
    shutil.rmtree(folder / "runs")
    report.write([gather(folder)], folder)
    page = (folder / "report.html").read_text()
    assert "0 of 1 runs complete" in page
    assert "not finished" in page
    assert "No claim could be evaluated" in page


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br",), seeds=1, pictures=False)
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert str(tmp_path / "out" / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert not (folder / "report.html").exists()
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "holds no reproduction" in capsys.readouterr().err
    assert main(["report"]) == 2
