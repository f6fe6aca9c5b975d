"""The report: one page without the network, made from run folders alone."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from mlmcgrad.cli import main
from mlmcgrad.experiments.reproduce import page as report
from mlmcgrad.experiments.reproduce import tables as report_tables
from mlmcgrad.experiments.reproduce.gather import gather
from mlmcgrad.experiments.reproduce.settings import Report
from tests.experiments.reproduce import fabricated

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reproduction with a failed run, and its report."""
    folder = fabricated.write(tmp_path_factory.mktemp("report") / "digits", seeds=2)
    fabricated.fail(folder, "amsgrad-mlmc-1", "FloatingPointError: <script>alert(1)</script>")
    report.write([gather(folder)], [fabricated.claims()], folder)
    return folder


def _page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself(folder: Path) -> None:
    page = _page(folder)
    assert not re.search(r"<(script|link|iframe|object|embed)\b", page)
    assert not re.search(r"@import|url\(", page)
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) > 15
    assert all(re.match(r"data:image/(svg\+xml|png);base64,", source) for source in sources)
    assert all(re.search(r'alt="[^"]+"', tag) for tag in re.findall(r"<img[^>]*>", page))
    assert 'name="viewport"' in page
    assert '<html lang="en">' in page


def test_the_page_has_every_claim(folder: Path) -> None:
    page = _page(folder)
    for claim in fabricated.claims():
        for text in (claim.paper, claim.measured, claim.note):
            assert text.replace("'", "&#39;") in page
    assert page.count('class="badge yes"') == 4
    assert page.count('class="badge no"') == 4
    assert page.count('class="badge open"') == 4
    assert "✗ does not hold" in page
    assert "0.03 to 0.21" in page
    assert "−0.35 to −0.07" in page


def test_what_went_wrong_is_named_and_escaped(folder: Path) -> None:
    page = _page(folder)
    assert "amsgrad-mlmc-1" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>" not in page
    failed = json.loads((folder / "summary.json").read_text())["failed"]
    assert failed == [
        {
            "dataset": "digits",
            "name": "amsgrad-mlmc-1",
            "error": "FloatingPointError: <script>alert(1)</script>",
        }
    ]


def test_no_failure_no_section_about_it(tmp_path: Path) -> None:
    made = fabricated.write(tmp_path / "r", methods=("br",), seeds=1, pictures=False)
    report.write([gather(made)], [[]], tmp_path)
    page = _page(tmp_path)
    assert "Runs without a result" not in page
    assert "No claim could be evaluated" in page


def test_summary(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    claims = summary["claims"]
    assert len(claims) == 12
    assert {"id", "dataset", "optimizer", "method", "value", "low", "high", "verdict"} <= set(
        claims[0]
    )
    assert claims[1]["value"] == 0.12
    assert len(summary["final"]) == 7  # one of eight runs failed
    rows = {(row["method"], row["seed"]): row for row in summary["final"]}
    last = gather(folder).of("mlmc-rb", "amsgrad")[1].tests[-1]
    for name in ("nll", "evaluations", "seconds", "iteration", "gradient", "nll_se"):
        assert rows["mlmc-rb", 1][name] == last[name]
    assert str(folder) not in json.dumps(summary)  # a folder of this machine is nobody's business
    assert str(folder) not in _page(folder)


def test_a_copied_folder_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copy)
    before = {path.relative_to(copy): path.read_bytes() for path in _made(copy)}
    assert len(before) == 2 + 2 * 7
    for path in _made(copy):
        path.unlink()
    report.write([gather(copy)], [fabricated.claims()], copy)
    assert {path.relative_to(copy): path.read_bytes() for path in _made(copy)} == before


def _made(folder: Path) -> list[Path]:
    return [folder / "report.html", folder / "summary.json", *(folder / "figures").rglob("*.*")]


def test_several_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    other = fabricated.write(tmp_path / "cifar10", "cifar10", methods=("br", "mlmc"), seeds=1)
    parts = [gather(folder), gather(other)]
    claims = [fabricated.claims(), fabricated.claims("cifar10")]
    path = report.write(parts, claims, tmp_path / "both")
    page = path.read_text()
    assert page.count("<h3>digits</h3>") == page.count("<h3>CIFAR-10</h3>") >= 7
    summary = json.loads((tmp_path / "both" / "summary.json").read_text())
    assert {row["dataset"] for row in summary["claims"]} == {"digits", "cifar10"}
    assert {row["dataset"] for row in summary["final"]} == {"digits", "cifar10"}
    for name in ("digits", "cifar-10"):
        assert (tmp_path / "both" / "figures" / name / "main.png").exists()


def test_two_of_one_dataset_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [
        fabricated.write(tmp_path / name, methods=("br",), seeds=1, pictures=False)
        for name in ("first", "second")
    ]
    path = report.run(Report(tuple(folders), out=tmp_path / "both"), QUIET)
    assert "<h3>digits (first)</h3>" in path.read_text()
    assert (tmp_path / "both" / "figures" / "digits--second" / "main.svg").exists()


def test_an_interval_without_an_end(tmp_path: Path) -> None:
    made = fabricated.write(tmp_path / "r", methods=("br",), seeds=1, pictures=False)
    claim = dataclasses.replace(fabricated.claims()[0], low=0.5, high=float("inf"))
    page = report.write([gather(made)], [[claim]], made).read_text()
    assert "0.5 to –" in page
    assert json.loads((made / "summary.json").read_text())["claims"][0]["high"] is None


def test_diagnostics_are_of_the_same_iterations(folder: Path) -> None:
    reproduction = gather(folder)
    rows = {row.method: row for row in report_tables.diagnostics(reproduction)}
    assert rows["br"].truncation == rows["mlmc"].truncation == pytest.approx(10.0)  # √100
    assert rows["iwae"].truncation == 1.0
    assert rows["iwae"].evaluations == pytest.approx(fabricated.CANDIDATES)
    br, mlmc = rows["br"], rows["mlmc"]
    last = [run.lines for run in reproduction.of("br", "amsgrad")]
    assert br.evaluations == pytest.approx(
        sum(rows[-1]["evaluations"] - rows[-2]["evaluations"] for rows in last) / 2 / 500
    )
    second = sum(rows[-1]["theta_squared"] for rows in last) / 2
    gradient = sum(run.tests[-1]["gradient"] for run in reproduction.of("br", "amsgrad")) / 2
    assert br.variance == pytest.approx(second - gradient)
    assert br.relative == 1.0
    assert mlmc.variance is not None
    assert br.variance is not None
    expected = mlmc.variance * mlmc.evaluations / (br.variance * br.evaluations)
    assert mlmc.relative == pytest.approx(expected)


def test_little_is_enough(tmp_path: Path) -> None:
    """No record of time, commit or versions; a single seed; no test of the gradient."""
    made = fabricated.write(tmp_path / "r", methods=("br", "mlmc"), seeds=1, pictures=False)
    about = json.loads((made / "config.json").read_text())
    for key in ("seconds", "finished", "cores", "versions", "command"):
        del about[key]
    about["commit"] = None
    (made / "config.json").write_text(json.dumps(about))
    for path in made.glob("runs/*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{k: v for k, v in row.items() if "gradient" not in k} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = report.write([gather(made)], [[]], made).read_text()
    assert page.count("not recorded") == 5
    assert "unknown" in page
    final = json.loads((made / "summary.json").read_text())["final"]
    assert [row["gradient"] for row in final] == [None, None]


def test_without_any_complete_run_there_is_still_a_report(tmp_path: Path) -> None:
    made = fabricated.write(tmp_path / "r", methods=("br",), seeds=1)
    shutil.rmtree(made / "runs")
    page = report.write([gather(made)], [[]], made).read_text()
    assert "0 of 1" in page
    assert "not finished" in page


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "{", "config.json is damaged"),
        ("config.json", '{"experiment": "reproduce"}', "config.json is damaged: KeyError 'runs'"),
        ("config.json", '{"experiment": "scaling"}', "not a reproduction"),
        ("runs/amsgrad-br-0/metrics.jsonl", "what\n", "metrics.jsonl is damaged"),
        ("runs/amsgrad-br-0/metrics.jsonl", '{"nll": 1.0}\n', "lines without epoch, evaluations"),
    ],
)
def test_a_damaged_folder_is_named(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fabricated.write(tmp_path / "r", methods=("br",), seeds=1, pictures=False)
    (made / name).write_text(text)
    assert main(["report", str(made)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert str(made) in error


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = fabricated.write(tmp_path / "r", methods=("br",), seeds=1, pictures=False)
    assert main(["report", str(made), "--out", str(tmp_path / "out")]) == 0
    assert str(tmp_path / "out" / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert not (made / "report.html").exists()
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "holds no reproduction" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["report"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0, "0"),
        (1.0, "1"),
        (-0.1234, "−0.123"),
        (54.77, "54.8"),
        (3000, "3,000"),
        (1234567.8, "1,234,568"),
        (1e-5, "1.00e−05"),
        (2.5e9, "2.50e+09"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert report_tables.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (7.4, "7 s"),
        (59.7, "1 min 00 s"),
        (312.0, "5 min 12 s"),
        (3600.0, "1 h 00 min"),
        (9000.0, "2 h 30 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert report_tables.duration(seconds) == text
