"""What the README and the examples say is run."""

import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

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
    for path in re.findall(r"`((?:src|docs|examples|benchmarks)/[\w./]*)`", README):
        assert (ROOT / path).exists(), path


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
