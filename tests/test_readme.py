"""What the README and the examples say is run."""

import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.run import markdown

from mlmcgrad.experiments.reproduce import markdown as claims_markdown
from tests.experiments.reproduce.fabricated import read_back

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_twenty_lines_fit_the_model() -> None:
    """Run as they stand; the fitted mean and covariance are close to those of the data."""
    (code,) = _blocks("python")
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 25
    namespace: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), namespace)
    data = namespace["data"]
    assert (namespace["mean"] - data.mean(0)).abs().max() < 0.15
    assert (namespace["covariance"] - data.T.cov()).abs().max() < 0.3
    assert (torch.eye(2) - data.T.cov()).abs().max() > 0.7  # it was not there at the start


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_code_in_the_documentation_runs(page: Path) -> None:
    for code in _blocks("python", page.read_text(encoding="utf-8")):
        exec(compile(code, page.name, "exec"), {})


def test_every_make_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake (\w+)", README))
    assert {"demo", "test", "bench"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_path_named_exists() -> None:
    for path in re.findall(r"`((?:src|docs|examples|benchmarks|results)/[\w./]*)`", README):
        assert (ROOT / path).exists(), path


def test_speed_is_as_measured() -> None:
    """The tables are rows of the benchmarks' own, and the page on speed has all of them."""
    folder = ROOT / "benchmarks"
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    measured = markdown(rows)
    assert (folder / "results.md").read_text(encoding="utf-8") == measured
    assert measured in (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    table = README.split("## Speed")[1].split("## ")[0]
    shown = [line for line in table.splitlines() if line.startswith("|")]
    assert len(shown) > 10
    assert set(shown) <= set(measured.splitlines())


def test_no_tracked_file_is_large() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.exists():
            assert path.stat().st_size < 2**20, name


def test_iwae_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "iwae_digits.py"))["main"](iterations=2, seeds=1)
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[1:]]
    assert names == ["IWAE", "MLMC-IWAE", "MLMC-IWAE,", "BR-IWAE"]


def test_boltzmann_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "boltzmann.py"))["main"](iterations=3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["CD-1", "average", "MLMC,"]


RESULTS = sorted((ROOT / "results").glob("*/summary.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.parent.name)
def test_results_say_the_same_everywhere(path: Path) -> None:
    """Tables, summary and figures of a committed result belong together, and say whence."""
    (findings,) = map(read_back, json.loads(path.read_text(encoding="utf-8"))["reproductions"])
    text = (path.parent / "claims.md").read_text(encoding="utf-8")
    assert text == claims_markdown.page([findings])
    about = findings.about
    assert about["command"].startswith("mlmcgrad reproduce --preset ")
    assert re.fullmatch("[0-9a-f]{40}", about["commit"])
    assert about["seconds"] > 0
    assert f"`{about['command']}`" in text
    assert about["commit"] in text
    assert len(findings.claims) == 50
    assert len(findings.final) == findings.runs
    assert not findings.failed
    assert (path.parent / "figures" / "main.png").exists()


def test_a_result_of_an_older_version_says_what_its_preset_is_called_now() -> None:
    text = (ROOT / "results" / "cifar10" / "claims.md").read_text(encoding="utf-8")
    assert "`mlmcgrad reproduce --preset cpu`" in text
    assert "Since version 0.2 this preset is called `full`." in text


def test_claims_in_the_readme_are_those_of_the_results() -> None:
    section = README.split("## The paper, reproduced")[1].split("\n## ")[0]
    for path in RESULTS:
        rows = (path.parent / "claims.md").read_text(encoding="utf-8").splitlines()
        part = section.split(f"`results/{path.parent.name}`")[1].split("`results/")[0]
        quoted = [line for line in part.splitlines() if line.startswith("| ")]
        assert len(quoted) > 5
        assert set(quoted) <= set(rows)
