"""The site: what its pages say is run, and their tables are those of the committed files."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import finish, scale
from benchmarks.run import markdown

from mlmcgrad.cli.commands import COMMANDS, parse
from mlmcgrad.paper.experiments import boltzmann

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# A block of Python, and the block of text right after it if there is one: what it prints.
PROGRAM = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", flags=re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


def same(printed: str, shown: str) -> bool:
    """Equal words, and numbers that differ by what another processor may make of them."""
    numbers = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=False)
    words = [NUMBER.sub("#", text).split() for text in (printed, shown)]
    return words[0] == words[1] and all(
        abs(float(a) - float(b)) <= 0.02 + 0.1 * abs(float(b)) for a, b in numbers
    )


@pytest.fixture
def untouched() -> Iterator[None]:
    """Leave torch's global generator and number of threads as they were: a page may set both."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_python_of_a_page_runs_and_prints_what_it_says(page: Path) -> None:
    """All blocks of a page are one program, in the order in which they stand."""
    namespace: dict[str, Any] = {}
    text = page.read_text(encoding="utf-8")
    assert text.count("```python") == len(PROGRAM.findall(text))
    for code, shown in PROGRAM.findall(text):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, page.name, "exec"), namespace)
        assert same(output.getvalue(), shown), f"{page.name} prints\n{output.getvalue()}"


def test_what_is_printed_is_compared() -> None:
    assert same("after: 1.82 nats\n", "after:  1.83 nats")
    assert not same("after: 1.82 nats\n", "after: 2.82 nats\n")
    assert not same("after: 1.82 nats\n", "")
    assert not same("after: 1.82 nats\n", "before: 1.82 nats\n")


def _rows(text: str) -> list[str]:
    """The lines of the tables in a text, without their headers."""
    return [
        line
        for line in text.splitlines()
        if re.match(r"\| (?!measured|problem|benchmark|---)", line)
    ]


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_speed_is_as_measured() -> None:
    """The page has the whole table of the benchmarks."""
    folder = ROOT / "benchmarks"
    measured = markdown(json.loads((folder / "results.json").read_text(encoding="utf-8")))
    assert (folder / "results.md").read_text(encoding="utf-8") == measured
    assert measured in _page("speed.md")


def test_scale_is_as_measured_and_simulated() -> None:
    """The page has all tables of scale.json, in their order."""
    record = json.loads((ROOT / "benchmarks" / "scale.json").read_text(encoding="utf-8"))
    shown = [line for line in scale.tables(record).splitlines() if line]
    page = _page("scale.md")
    places = [page.find(line) for line in shown]
    assert min(places) >= 0
    assert len(shown) > 50


def test_variances_are_as_measured() -> None:
    """The page on speed has all rows of variance.json, the page on variance has some of them."""
    rows = [
        f"| {row['problem']} | {row['selection']} | {row['levels']} | {row['base']} "
        f"| {row['evaluations']:.1f} | {row['gain']:.2f} "
        f"| {row['gain_low']:.2f} to {row['gain_high']:.2f} |"
        for row in json.loads((ROOT / "benchmarks" / "variance.json").read_text(encoding="utf-8"))
    ]
    assert _rows(_page("speed.md").split("## Variance for evaluations")[1]) == rows
    shown = [row for row in _rows(_page("concepts/variance.md")) if row.count("|") == 8]
    assert len(shown) > 5
    assert set(shown) <= set(rows)


def test_estimators_are_as_measured() -> None:
    """The page on variance has bias², variance, evaluations and gain of estimators.json."""
    measured = json.loads((ROOT / "benchmarks" / "estimators.json").read_text(encoding="utf-8"))
    page = _page("concepts/variance.md").split("## Levels of importance sampling")[1]
    table = _rows(page.split("## ")[0])
    shown = [row for row in table if not row.startswith(("| **", "| estimator"))]
    assert len(shown) == len(measured["rows"])
    for row, text in zip(measured["rows"], shown, strict=True):
        _, bias2, variance, evaluations, gain = (c.strip() for c in text.strip("|").split("|"))
        assert float(evaluations) == round(row["evaluations"], 1)
        assert float(variance) == pytest.approx(row["variance"], rel=5e-3)
        if bias2 == "none":
            assert abs(row["bias2"]) < 4.0 * row["bias2_se"] + 1e-4
        else:
            assert float(bias2.split(" ± ")[0]) == pytest.approx(row["bias2"], rel=5e-3, abs=5e-5)
        assert gain == ("" if "IWAE" in text else f"{row['gain']:.2f}")
    for number in (measured["sum form at T = 128"], *_slopes(measured)):
        assert f"{number:.2f}" in page


def test_finishes_are_as_measured() -> None:
    """The page has all tables of finish.json."""
    folder = ROOT / "benchmarks"
    measured = finish.markdown(json.loads((folder / "finish.json").read_text(encoding="utf-8")))
    assert (folder / "finish.md").read_text(encoding="utf-8") == measured
    page = _page("results/finish.md")
    tables = measured.split("\n\n")
    assert len(tables) > 10
    assert all(table.strip() in page for table in tables)


def _slopes(measured: Any) -> list[float]:
    return [-slope for slope in measured["slopes of the level variance"].values()]


@pytest.mark.parametrize("dataset", ["cifar10", "digits"])
def test_claims_are_those_of_the_results(dataset: str) -> None:
    """Sentences and rows are lines of the committed claims, with the command they come from."""
    claims = (ROOT / "results" / dataset / "claims.md").read_text(encoding="utf-8").splitlines()
    section = _page("results/paper.md").split(f"`results/{dataset}`")[1].split("\n## ")[0]
    quoted = [line for line in section.splitlines() if line.startswith(("| ", "- "))]
    assert len(quoted) > 10
    assert set(quoted) <= set(claims)
    assert f"at commit {claims[2].partition('commit ')[2][:7]}" in section


@pytest.mark.parametrize("page", ["results/paper.md", "reproduce.md"])
def test_claims_are_counted(page: str) -> None:
    said = re.findall(r"of\s+the\s+(\d+)\s+claims", _page(page))
    for path in (ROOT / "results").glob("*/summary.json"):
        (found,) = json.loads(path.read_text(encoding="utf-8"))["reproductions"]
        assert said == [str(len(found["claims"]))]


@pytest.mark.parametrize("data", ["bars", "digits"])
def test_boltzmann_machines_are_as_measured(data: str) -> None:
    """The page has the table of each committed run, and that is the table of its summary."""
    folder = ROOT / "results" / "boltzmann" / data
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert table == boltzmann.markdown(summary)
    assert "\n".join(table.splitlines()[2:-2]) in _page("results/boltzmann.md")
    assert (folder / "boltzmann.png").exists()


def test_every_command_named_can_be_given() -> None:
    """Commands in blocks of shell code have names and options that exist."""
    lines = [
        line.split("#")[0].strip()
        for page in PAGES
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
    ]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("mlmcgrad ")]
    assert {command[0] for command in commands} == set(COMMANDS)
    for command in commands:
        assert parse(command)[0] == command[0]


def test_every_file_and_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for path in re.findall(r"`((?:src|docs|examples|benchmarks|results|tests)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path
    targets = re.findall(r"\bmake (\w+)(?:`| +#)", text)
    assert {"demo", "test", "docs", "bench"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_erratum_cited_is_on_its_page() -> None:
    numbers = set(re.findall(r"^## (\d+)\.", _page("errata.md"), flags=re.MULTILINE))
    assert numbers == {str(n) for n in range(1, 11)}
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert set(re.findall(r"erratum (\d+)", sources)) <= numbers


def test_what_is_said_of_plans_is_what_was_measured() -> None:
    page = (DOCS / "choose-length.md").read_text(encoding="utf-8")
    table = (ROOT / "benchmarks" / "planner.md").read_text(encoding="utf-8")
    found = [line for line in table.splitlines() if line.startswith(("Few", "Many"))]
    assert len(found) == 2
    assert all(f"- {line}\n" in page for line in found)
    for kind, said in zip(("few", "many"), found, strict=True):
        ratios = re.findall(rf"\| {kind} \| .*?` \| ([\d.]+) \|", table)
        good = sum(float(ratio) <= 1.5 for ratio in ratios)
        assert f": {good} of {len(ratios)} plans" in said
