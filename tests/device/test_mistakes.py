"""The tool that plants device mistakes: it names each place once, and a sample is noticed."""

from __future__ import annotations

import subprocess
import sys

from tests.device.mistakes import ROOT, harmless, mistakes, modules, planted


def test_mistakes_can_be_planted() -> None:
    every = [each for name in modules([]) for each in mistakes(name)]
    assert len(every) > 50
    assert len(set(every)) == len(every)
    for mistake in every[::6]:
        planted(mistake)


def test_harmless_mistakes_exist_and_have_reasons() -> None:
    for module, reasons in harmless().items():
        assert set(reasons) <= {mistake.name for mistake in mistakes(module)}
        assert all(len(reason) > 20 for reason in reasons.values())


def test_a_mistake_is_noticed() -> None:
    """All of them: `MLMCGRAD_DEVICE=standin python -m tests.device.mistakes`."""
    command = [sys.executable, "-m", "tests.device.mistakes", "optim", "--sample", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1 mistakes, 0 not noticed")
