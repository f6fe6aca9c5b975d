"""The script of docs/several-processes.md, with one process and with two."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from tests.distributed.processes import together

PAGE = Path(__file__).parents[2] / "docs" / "several-processes.md"


def printed(script: str) -> list[list[str]]:
    """The words of each line that a script prints."""
    output = io.StringIO()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(output):
        exec(script, namespace)
    return [line.split() for line in output.getvalue().splitlines()]


def test_the_script_of_the_page_prints_the_same_with_two_processes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    (shown,) = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    expected = [line.split() for line in shown.splitlines()]
    first, second = together(2, printed, script)
    assert second == []
    for chains, norm in (first, printed(script)):
        assert chains == expected[0]
        assert abs(float(norm[-1]) - float(expected[1][-1])) < 1e-4  # another processor rounds too
