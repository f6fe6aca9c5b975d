"""What the README and the examples say is run."""

import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from mlmcgrad.cli.commands import COMMANDS
from mlmcgrad.paper.experiments.reproduce import report
from tests.paper.experiments.reproduce.fabricated import read_back

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_quick_start_fits_the_model() -> None:
    """Run as it stands. The NLL per point, with the integral on a grid, falls from 2.2 to 1.86."""
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    setup, training = code.split("for n in range")
    namespace: dict[str, Any] = {}
    line = torch.linspace(-4.0, 4.0, 201)

    def nll() -> float:
        energy = namespace["energy"]
        with torch.no_grad():
            log_z = energy(torch.cartesian_prod(line, line)).neg().logsumexp(0)
            return float(energy(namespace["data"]).mean() + log_z + 2.0 * (line[1] - line[0]).log())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(setup, "README.md", "exec"), namespace)
        assert nll() > 2.1
        exec(compile(f"for n in range{training}", "README.md", "exec"), namespace)
    assert nll() < 1.9


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_every_make_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake (\w+)", README))
    assert {"demo", "test", "bench"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_path_and_command_named_exists() -> None:
    paths = re.findall(r"`((?:src|docs|examples|benchmarks|results)/[\w./]*)`", README)
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    assert len(links) > 5
    for path in (*paths, *links):
        assert (ROOT / path).exists(), path
    commands = set(re.findall(r"`mlmcgrad (\w+)", README))
    assert {"demo", "train", "reproduce"} <= commands <= set(COMMANDS)


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
