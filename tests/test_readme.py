"""What the README and the examples say is run."""

import contextlib
import io
import json
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mlmcgrad.cli.commands import COMMANDS, parse
from mlmcgrad.paper.experiments.reproduce import report
from tests.paper.experiments.reproduce.fabricated import read_back
from tests.test_docs import same

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


PROGRAM = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", flags=re.DOTALL)


def _contraception() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    district = np.repeat(np.arange(30), 20)
    age, urban = rng.standard_normal(600), rng.integers(0, 2, 600)
    logit = 0.5 * urban - 0.3 * age + 0.8 * rng.standard_normal(30)[district]
    use = (rng.random(600) < 1.0 / (1.0 + np.exp(-logit))).astype(int)
    return pd.DataFrame({"use": use, "age": age, "urban": urban, "district": district})


def test_the_blocks_are_one_program_that_prints_what_they_say() -> None:
    """Run as they stand; `data` of the last one are a reader's own."""
    blocks = PROGRAM.findall(README)
    assert len(blocks) == README.count("```python") == 4
    namespace: dict[str, Any] = {"data": _contraception()}
    printed = []
    with torch.random.fork_rng():
        for code, _ in blocks:
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(code, "README.md", "exec"), namespace)
            printed.append(output.getvalue())
    example, training, plan, fit = printed
    assert same(example, blocks[0][1])
    assert not training
    assert "MLMCSum" in plan
    assert "Use " in plan
    assert "Certificate holds" in fit
    problem = namespace["problem"]
    assert problem.objective() < namespace["mg"].problems.finite_chain().objective() - 0.1


def test_the_first_example_is_short() -> None:
    """What a stranger reads: fifteen lines of code, a page of a hundred and ten."""
    first, *_ = (code for code, _ in PROGRAM.findall(README))
    assert len([line for line in first.splitlines() if line]) <= 15
    assert len(README.splitlines()) <= 110


def test_every_command_named_can_be_given() -> None:
    for name, options in re.findall(r"`mlmcgrad (\w+)([^`]*)`", README):
        arguments = options.replace("FORMULA", "'y ~ x + (1 | g)'")
        if arguments or name == "demo":
            assert parse([name, *shlex.split(arguments)])[0] == name


def test_every_make_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake (\w+)", README))
    assert {"demo", "test", "docs"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_path_and_command_named_exists() -> None:
    paths = re.findall(r"`((?:src|docs|examples|benchmarks|results)/[\w./]*)`", README)
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    assert len(links) > 5
    for path in (*paths, *links):
        assert (ROOT / path).exists(), path
    commands = set(re.findall(r"`mlmcgrad (\w+)", README))
    assert {"demo", "fit"} <= commands <= set(COMMANDS)


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
    assert [line.split()[0] for line in lines[1:]] == ["CD-1", "average", "MLMCSum(64)"]


def test_factor_analysis_example(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(ROOT / "examples" / "factor_analysis.py"))["main"]
    main(evaluations=10_000, rows=200)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["maximum", "biased", "with"]
    assert all(float(line.split()[-1]) > 0.0 for line in lines[1:3])


def test_mixed_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "mixed.py"))["main"](groups=60, out=tmp_path / "a.png")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["Laplace", "mlmcgrad", "exact"]
    laplace, ours, best = (float(line.split()[-1]) for line in lines[1:])
    assert laplace < ours <= best < ours + 0.02
    assert (tmp_path / "a.png").stat().st_size > 10_000


RESULTS = sorted((ROOT / "results").glob("*/claims.md"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.parent.name)
def test_results_say_the_same_everywhere(path: Path) -> None:
    """Tables, summary and figures of a committed result belong together, and say whence."""
    summary = json.loads((path.parent / "summary.json").read_text(encoding="utf-8"))
    (findings,) = map(read_back, summary["reproductions"])
    text = path.read_text(encoding="utf-8")
    assert text == report.markdown([findings])
    about = findings.about
    assert about["command"].startswith("mlmcgrad reproduce --preset ")
    assert re.fullmatch("[0-9a-f]{40}", about["commit"])
    assert about["seconds"] > 0
    assert f"`{about['command']}`" in text
    assert about["commit"] in text
    assert len(findings.claims) == 92
    assert len(findings.final) == findings.runs
    assert not findings.failed
    assert (path.parent / "figures" / "main.png").exists()
