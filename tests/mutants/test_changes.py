"""The changes of a few lines, all of them by name, and that each is planted alone."""

import ast

import pytest

from tests.mutants.changes import changed, changes

SOURCE = '''
"""A docstring has no changes."""

__all__ = ["scale"]
LIMIT: int = 3


def scale(x: float, twice: bool = False) -> float:
    """Nor has this one: 1 + 1."""
    if x < 0.0:
        raise ValueError(f"x must be ≥ 0, got {x + 1}")
    return -max(x, 1e-9) * (2 if twice else 1)
'''


def test_all_changes_are_found() -> None:
    found = [(change.where, change.text) for change in changes(SOURCE)]
    assert found == [
        ("", "LIMIT: int = 3 → LIMIT: int = 4"),
        ("scale", "twice=False → True"),
        ("scale", "x < 0.0 → x <= 0.0"),
        ("scale", "x < 0.0 → x < 1.0"),
        ("scale", "raise ValueError(f'x must be ≥ 0, got {x + 1}') → pass"),
        ("scale", "return -max(x, 1e-09) * (2 if twice else 1) → return None"),
        ("scale", "-max(x, 1e-09) * (2 if twice else 1) → -max(x, 1e-09) / (2 if twice else 1)"),
        ("scale", "-max(x, 1e-09) * (2 if twice else 1) → max(x, 1e-09) * (2 if twice else 1)"),
        ("scale", "max(x, 1e-09) → min(x, 1e-09)"),
        ("scale", "max(x, 1e-09) → max(x, 0.0)"),
        ("scale", "2 if twice else 1 → 1 if twice else 2"),
        ("scale", "2 if twice else 1 → 3 if twice else 1"),
        ("scale", "2 if twice else 1 → 2 if twice else 2"),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f(a, b, key=c)", ["f(b, a, key=c)", "f(…)"]),
        ("g(a, device=d)", []),
        ("a == b", ["a != b"]),
        ("a and not b", ["a or not b", "a and b"]),
        ("[i for i in a if i > 0]", ["for i in a", "i >= 0", "i > 1"]),
        ("a[1:]", ["2:"]),
        ("x.sum(1)", ["x.mean(1)", "x.sum(2)"]),
    ],
)
def test_changes_of_an_expression(line: str, expected: list[str]) -> None:
    found = [change.text.split(" → ")[1].strip() for change in changes(f"y = {line}")]
    assert found == expected


def test_statements_are_left_out() -> None:
    source = "def f(a, n):\n    a.clear()\n    n += 1\n    a[0] = n\n    while n:\n        break\n"
    found = [change.text for change in changes(source)]
    assert found == [
        "a.clear() → pass",
        "n += 1 → pass",
        "n += 1 → n -= 1",
        "n += 1 → n += 2",
        "a[0] = n → pass",
        "a[0] → a[1]",
        "n → not n",
        "break → continue",
    ]


def test_a_tree_has_one_change() -> None:
    for number, change in enumerate(changes(SOURCE)):
        before, after = ast.unparse(ast.parse(SOURCE)), ast.unparse(changed(SOURCE, number))
        assert before != after, change.name
        assert sum(a != b for a, b in zip(before.split(), after.split(), strict=False)) > 0
        compile(changed(SOURCE, number), "scale.py", "exec")


def test_equal_changes_of_a_function_are_told_apart() -> None:
    names = [change.name for change in changes("def f(a):\n    b = a + 1\n    return a + 1 - b\n")]
    assert len(set(names)) == len(names)
    assert "f: a + 1 → a - 1 (number 2)" in names


def test_what_runs_on_import_is_told_apart() -> None:
    source = "class A:\n    x = 1\n\n    def f(self, y=2):\n        return self.x + 3\n"
    outside = [change.text for change in changes(source) if not change.function]
    assert outside == ["x = 1 → x = 2"]
    assert "A.f: y=2 → 3" in [change.name for change in changes(source)]
