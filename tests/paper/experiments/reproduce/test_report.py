"""The report: page, summary, Markdown and figures from run folders alone."""

import dataclasses
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.paper.experiments.reproduce import figures, report
from mlmcgrad.paper.experiments.reproduce.data import read_reproduction
from mlmcgrad.paper.experiments.reproduce.figures import draw
from mlmcgrad.paper.experiments.reproduce.findings import ReproductionFindings, find
from mlmcgrad.paper.experiments.reproduce.sentences import (
    measured,
    note,
    paper,
    statement,
    takeaways,
)
from mlmcgrad.paper.experiments.reproduce.settings import ReportSettings
from mlmcgrad.paper.runs.folder import locked
from tests.folders import content
from tests.paper.experiments.reproduce import fabricated

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reproduction and its report."""
    folder = fabricated.write(tmp_path_factory.mktemp("report") / "digits", seeds=2)
    report.write([read_reproduction(folder)], folder)
    return folder


@pytest.fixture
def blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels without a drawing, for tests of everything else: drawing takes most of their time."""
    png = io.BytesIO()
    Image.new("RGB", (4, 3)).save(png, "PNG")
    monkeypatch.setattr(
        figures, "_render", lambda alt, *_: figures.Drawing("<svg/>", png.getvalue(), alt)
    )


def test_everything_is_written_from_the_same_findings(folder: Path) -> None:
    (findings,) = find([read_reproduction(folder)])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == {"reproductions": [json.loads(json.dumps(findings.record()))]}
    assert (folder / "claims.md").read_text() == report.markdown([findings])
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
    report.write([read_reproduction(copy)], copy)
    assert {path.relative_to(copy): path.read_bytes() for path in _made(copy)} == before


def _made(folder: Path) -> list[Path]:
    names = ("report.html", "summary.json", "claims.md")
    return [*(folder / name for name in names), *(folder / "figures").rglob("*.*")]


@pytest.mark.usefixtures("blank")
def test_several_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    other = fabricated.write(tmp_path / "cifar10", "cifar10", methods=("br", "mlmc"), seeds=1)
    report.write([read_reproduction(folder), read_reproduction(other)], tmp_path / "both")
    page = (tmp_path / "both" / "report.html").read_text()
    assert page.count("<h3>digits</h3>") == page.count("<h3>CIFAR-10</h3>") == 7
    summary = json.loads((tmp_path / "both" / "summary.json").read_text())
    assert [part["name"] for part in summary["reproductions"]] == ["digits", "CIFAR-10"]
    for name in ("digits", "cifar-10"):
        assert (tmp_path / "both" / "figures" / name / "main.png").exists()
    text = (tmp_path / "both" / "claims.md").read_text()
    assert text.index("# Claims on digits") < text.index("# Claims on CIFAR-10")


@pytest.mark.usefixtures("blank")
def test_two_of_one_dataset(tmp_path: Path) -> None:
    folders = [
        fabricated.write(tmp_path / name, methods=("br",), seeds=1, pictures=False)
        for name in ("first", "second")
    ]
    path = report.run(ReportSettings(tuple(folders), out=tmp_path / "both"), QUIET)
    assert "<h3>digits (first)</h3>" in path.read_text()
    assert (tmp_path / "both" / "figures" / "digits--second" / "main.png").exists()


def test_a_report_is_not_written_over_another_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"experiment": "train"}')
    (tmp_path / "summary.json").write_text("of the training")
    with pytest.raises(ValueError, match="holds a run of train, as its config"):
        report.run(ReportSettings((folder,), out=tmp_path), QUIET)
    assert (tmp_path / "summary.json").read_text() == "of the training"


def _reports(folder: Path, out: Path, **settings: Any) -> dict[str, bytes]:
    report.run(ReportSettings((folder,), out=out, **settings), QUIET)
    return content(out)


@pytest.mark.usefixtures("blank")
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
        report.run(ReportSettings((folder,), out=tmp_path), QUIET)
    assert content(tmp_path) == {"figures/main.png": b"mine"}


def test_force_never_moves_what_is_reported(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    before = content(copy)
    for settings in (
        ReportSettings((copy,), force=True),
        ReportSettings((copy,), out=copy / ".", force=True),
    ):
        report.run(settings, QUIET)
        assert content(copy) == before
    with pytest.raises(ValueError, match="is one of the reproductions and has a report of its own"):
        report.run(ReportSettings((copy, folder), out=copy, force=True), QUIET)
    assert content(copy) == before


@pytest.mark.parametrize("name", ["copy", "elsewhere"])
def test_one_process_at_a_time(folder: Path, name: str, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with locked(tmp_path / name), pytest.raises(ValueError, match="another process is using"):
        report.run(ReportSettings((copy,), out=tmp_path / name), QUIET)


def test_markdown_has_every_claim_once(folder: Path) -> None:
    (findings,) = find([read_reproduction(folder)])
    text = report.markdown([findings])
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


@pytest.mark.usefixtures("blank")
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
    (findings,) = report.write([read_reproduction(folder)], folder)
    page = (folder / "report.html").read_text()
    assert page.count("not recorded") == 6
    assert "unknown" in page
    assert [row.gradient for row in findings.final] == [None, None]
    assert {claim.quantity for claim in findings.claims} == {"nll", "budget"}


@pytest.mark.usefixtures("blank")
def test_without_any_complete_run_there_is_still_a_report(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br",), seeds=1)
    shutil.rmtree(folder / "runs")
    report.write([read_reproduction(folder)], folder)
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


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> ReproductionFindings:
    """Of a reproduction with a failed run."""
    folder = fabricated.write(tmp_path_factory.mktemp("page") / "digits", seeds=2)
    fabricated.fail(folder, "amsgrad-mlmc-1", "FloatingPointError: <script>alert(1)</script>")
    return fabricated.findings(folder, fabricated.claims())


@pytest.fixture(scope="module")
def html(findings: ReproductionFindings, tmp_path_factory: pytest.TempPathFactory) -> str:
    drawings = draw(findings, tmp_path_factory.mktemp("figures"))
    return report.render([findings], [drawings], [{"Samples: BR-IWAE": b"png"}])


def _escaped(text: str) -> str:
    return text.replace("'", "&#39;")


def test_the_page_needs_nothing_but_itself(html: str) -> None:
    assert not re.search(r"<(script|link|iframe|object|embed)\b", html)
    assert not re.search(r"@import|url\(", html)
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert len(sources) == 1 + 2 * 3 + 3 + 1  # main, the paper's, levels and cost, a picture
    assert all(re.match(r"data:image/(svg\+xml|png);base64,", source) for source in sources)
    assert all(re.search(r'alt="[^"]+"', tag) for tag in re.findall(r"<img[^>]*>", html))
    assert 'name="viewport"' in html
    assert '<html lang="en">' in html


def test_the_page_opens_with_the_picture_and_the_sentences(
    findings: ReproductionFindings, html: str
) -> None:
    """The table of claims comes after them, and folds."""
    picture = html.index("<img")
    assert (
        'alt="test NLL (nats per image) against network evaluations' in html[picture:].split(">")[0]
    )
    sentences = [html.index(_escaped(sentence)) for sentence in takeaways(findings)]
    assert len(sentences) == 3
    table = html.index('<table class="claims">')
    assert picture < sentences[0] < sentences[-1] < table
    assert html.rindex("<details>", 0, table) > html.rfind("</details>", 0, table)


def test_the_page_has_every_claim_in_one_row_for_both_optimizers(
    findings: ReproductionFindings, html: str
) -> None:
    for claim in findings.claims:
        notes = note(claim, findings.diagnostics)
        for text in (paper(claim), statement(claim), measured(claim), notes):
            assert _escaped(text) in html
    table = html[html.index('<table class="claims">') : html.index("</table>")]
    assert table.count("<tr><td>") == len(findings.claims) / 2
    assert [table.count(f'class="badge {kind}"') for kind in ("yes", "no", "open")] == [4, 4, 4]
    assert "✗ does not hold" in table
    assert "0.12 (0.03 to 0.21)" in table
    assert "All 12 claims (✓ holds: 4, ✗ does not hold: 4, ? undecided: 4)" in html


def test_what_went_wrong_is_named_and_escaped(html: str) -> None:
    assert "13 of 14 runs complete" in html
    assert "amsgrad-mlmc-1" in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script>" not in html


@pytest.mark.usefixtures("blank")
def test_no_failure_no_section_about_it(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br",), seeds=1, pictures=False)
    findings = fabricated.findings(folder)
    html = report.render([findings], [draw(findings, tmp_path)], [{}])
    assert "Runs without a result" not in html
    assert "No claim could be evaluated" in html


def test_pictures_are_the_last_of_the_first_complete_run(tmp_path: Path) -> None:
    folder = fabricated.write(tmp_path / "r", methods=("br", "mlmc"), seeds=2)
    fabricated.fail(folder, "amsgrad-br-0", "no memory")
    pictures = report.pictures(read_reproduction(folder))
    assert list(pictures) == [
        f"{kind}: {label}, AMSGrad, seed {seed}"
        for kind in ("Samples", "Reconstructions")
        for label, seed in (("BR-IWAE", 1), ("MLMC-IWAE", 0))
    ]
    last = folder / "runs" / "amsgrad-mlmc-0" / "samples-000200.png"
    assert pictures["Samples: MLMC-IWAE, AMSGrad, seed 0"] == last.read_bytes()


@pytest.mark.parametrize("to", ["file", "png", "folder", "text", "nothing"])
def test_a_picture_is_a_png_file_of_the_reproduction(to: str, tmp_path: Path) -> None:
    """The page would publish what a link leads to; a copy of a picture is a picture."""
    folder = fabricated.write(tmp_path / "r", methods=("br",), seeds=1)
    run = folder / "runs" / "amsgrad-br-0"
    path = run / "samples-000100.png"
    secret = tmp_path / "secret.png"
    secret.write_bytes(path.read_bytes() if to == "png" else b"secret")
    if to == "text":
        path.write_bytes(b"secret")
    elif to == "folder":  # the run is elsewhere
        run.rename(tmp_path / "elsewhere")
        run.symlink_to(tmp_path / "elsewhere")
    else:
        path.unlink()
        path.symlink_to(run / "samples-000010.png" if to == "nothing" else secret)
    reproduction = read_reproduction(folder)
    if to == "nothing":  # a link within the folder
        assert len(report.pictures(reproduction)) == 2
        return
    with pytest.raises(
        ValueError, match=r"is damaged: it is not a PNG file inside .*; restore the"
    ):
        report.run(ReportSettings((folder,)), QUIET)
    assert not (folder / "report.html").exists()
    assert not (folder / "summary.json").exists()


@pytest.mark.usefixtures("blank")
def test_text_of_a_file_is_text(tmp_path: Path) -> None:
    """In claims.md as in the page: no HTML, no link, no end of the line or of the code."""
    hostile = "<script>alert(1)</script> [a](b) `c` **d** | \x1b[31m\n# e"
    folder = fabricated.write(tmp_path / "r", methods=("br", "mlmc"), seeds=1, pictures=False)
    about = json.loads((folder / "config.json").read_text())
    about |= {"command": hostile, "commit": hostile, "cores": hostile, "finished": hostile}
    (folder / "config.json").write_text(json.dumps(about))
    report.write([read_reproduction(folder)], folder)
    assert "<script>" not in (folder / "report.html").read_text()
    _, _, line, *others = (folder / "claims.md").read_text().splitlines()
    assert "# e" not in others
    command = "<script>alert(1)</script> [a](b) 'c' **d** | \\x1b[31m # e"
    escaped = r"&lt;script&gt;alert(1)&lt;/script&gt; \[a\](b) \`c\` \*\*d\*\* \| "
    escaped += r"\\x1b\[31m # e"
    assert line == f"`{command}`, 5 min 12 s on {escaped} cores, commit {escaped}."


def test_the_numbers_are_written_before_the_figures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("cannot be drawn")

    monkeypatch.setattr("mlmcgrad.paper.experiments.reproduce.figures.draw", fails)
    with pytest.raises(ValueError, match="cannot be drawn"):
        report.run(ReportSettings((folder,), out=tmp_path / "out"), QUIET)
    for name in ("summary.json", "claims.md"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_the_second_decoding_is_counted_on_both_sides(tmp_path: Path) -> None:
    findings = fabricated.findings(fabricated.write(tmp_path, pictures=False))
    by_method = {row.method: (row, shares) for row, shares in report.shares(findings).items()}
    assert by_method["br"][1] == (1.0, 1.0)
    br, (row, (counted, both)) = by_method["br"][0], by_method["mlmc"]
    # Two states of every image are decoded again, by all methods.
    assert counted == pytest.approx(row.evaluations / br.evaluations)
    assert both == pytest.approx((row.evaluations + 2.0) / (br.evaluations + 2.0))
    assert counted is not None
    assert both is not None
    assert counted < both < 1.0
    text = report.markdown([findings])
    assert "which budgets leave out" in text
    cells = f"{row.evaluations:.3g} | 2 | {counted:.3g} | {both:.3g}"
    assert f"| MLMC-IWAE | AMSGrad | {cells} |" in text


def test_what_is_not_known_is_left_open(tmp_path: Path) -> None:
    findings = fabricated.findings(fabricated.write(tmp_path, pictures=False))
    rows = [dataclasses.replace(row, decoded_again=None) for row in findings.diagnostics]
    older = dataclasses.replace(findings, diagnostics=tuple(rows))
    assert {both for _, both in report.shares(older).values()} == {None}
    alone = [row for row in findings.diagnostics if row.method != "br"]
    without = dataclasses.replace(findings, diagnostics=tuple(alone))
    assert set(report.shares(without).values()) == {(None, None)}
    assert "Decoder passes" not in report.markdown([dataclasses.replace(findings, diagnostics=())])
