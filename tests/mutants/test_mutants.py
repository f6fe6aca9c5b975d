"""The command on a project of one module: what tests see is killed, what they do not is named."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE = '''
def total(n):
    """1 + 2 + … + n."""
    result = 0
    while n > 0:
        result += n
        n -= 1
    return result


def largest(a, b):
    return max(a, b)


def tests(result):
    """No test, in spite of its name."""
'''
CONFTEST = """
import tiny.measure  # before pytest is configured
"""
TESTS = """
from tiny.measure import largest, total


def test_total():
    assert total(3) == 6


def test_largest():
    assert largest(2, 2) == 2  # blind to what it should see
"""
EQUIVALENT = """
["measure"]
"total: n > 0 → n >= 0" = "adds a 0"
"total: n > 1 → n > 0" = "of an older version"
"""


def test_survivors_are_named_and_fail_the_command(tmp_path: Path) -> None:
    for name, text in {
        "src/tiny/__init__.py": "",
        "src/tiny/measure.py": MODULE,
        "tests/conftest.py": CONFTEST,
        "tests/test_measure.py": TESTS,
        "tests/mutants/equivalent.toml": EQUIVALENT,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "--root", tmp_path, "--jobs", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    # 0 → 1 twice, > 0 → > 1, two changes of each +=, 1 → 2, two returns, max → min and one of its
    # arguments: a while that never ends is killed by the clock.
    survivors = tomllib.loads((tmp_path / "build" / "mutants.toml").read_text(encoding="utf-8"))
    assert survivors == {"measure": {"largest: max(a, b) → min(a, b)": ""}}
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("  ")]
    assert rows[0] == ["module", "tried", "killed", "survived", "equivalent"]
    tried, killed, survived, equivalent = map(int, rows[1][1:])
    assert (tried, killed, survived, equivalent) == (10, 9, 1, 1)
    assert "does not exist: measure total: n > 1 → n > 0" in done.stdout
    assert "what survived is in build/mutants.toml" in done.stdout
