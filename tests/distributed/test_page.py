"""The script of docs/several-processes.md, as a user starts it."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "several-processes.md"


def test_the_script_of_the_page_prints_the_same_with_two_processes(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)))
    (shown,) = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    chains, norm = (line.split() for line in done.stdout.splitlines())
    expected = [line.split() for line in shown.splitlines()]
    assert chains == expected[0]
    assert abs(float(norm[-1]) - float(expected[1][-1])) < 1e-4  # another processor rounds too
