from typing import Any

import pandas as pd
import pytest

from mlmcgrad.mixed.design import build

G = {"g": ["a", "a", "b", "b"], "n": [3, 4, 5, 6]}


def _build(left: str, values: Any) -> Any:
    return build(f"{left} ~ 1 + (1 | g)", {"y": values, **G})


@pytest.mark.parametrize(
    ("left", "values", "y", "success"),
    [
        ("y", [3, 0, 1, 2], [3.0, 0.0, 1.0, 2.0], None),
        ("y", ["no", "yes", "no", "no"], [0.0, 1.0, 0.0, 0.0], "yes"),
        ("y['no']", ["no", "yes", "no", "no"], [1.0, 0.0, 1.0, 1.0], "no"),
        ("y['b']", ["a", "b", "c", "b"], [0.0, 1.0, 0.0, 1.0], "b"),
        ("y", [True, False, True, True], [1.0, 0.0, 1.0, 1.0], "True"),
        ("y['False']", [True, False, True, True], [0.0, 1.0, 0.0, 0.0], "False"),
        ("binary(y, 2)", [1, 2, 3, 2], [0.0, 1.0, 0.0, 1.0], "2"),
        ("{y > 2}", [1, 2, 3, 4], [0.0, 0.0, 1.0, 1.0], "True"),
        ("{y / 2}", [1, 2, 3, 4], [0.5, 1.0, 1.5, 2.0], None),
        ("y", pd.Categorical(list("abba"), list("ba")), [1.0, 0.0, 0.0, 1.0], "a"),
        ("y", pd.array([1, 0, 1, 0], dtype="Int64"), [1.0, 0.0, 1.0, 0.0], None),
    ],
)
def test_responses(left: str, values: Any, y: list[float], success: str | None) -> None:
    design = _build(left, values)
    assert design.y.tolist() == y
    assert design.success == success
    assert design.response == left
    assert design.trials.tolist() == [1.0] * 4


def test_trials() -> None:
    for left, trials in (
        ("proportion(y, n)", [3.0, 4.0, 5.0, 6.0]),
        ("y | trials(n)", [3.0, 4.0, 5.0, 6.0]),
        ("y | trials(n + y)", [4.0, 4.0, 7.0, 8.0]),
        ("p(y, 9)", [9.0] * 4),
    ):
        design = _build(left, [1, 0, 2, 2])
        assert design.y.tolist() == [1.0, 0.0, 2.0, 2.0]
        assert design.trials.tolist() == trials
        new = design.coding.design({**G, "y": [1, 0, 2, 2]})
        assert new.trials.tolist() == trials
    without = _build("y | trials(n)", [1, 0, 2, 2]).coding.design({"g": ["a"]})
    assert without.trials.tolist() == [1.0]


@pytest.mark.parametrize(
    ("left", "values", "message"),
    [
        ("y", ["a", "b", "c", "d"], r"numbers or have two levels, got 4 levels .*y\['a'\] ~ …"),
        ("y", ["a", "a", "a", "a"], "'y' is 'a' in all rows"),
        ("y['yse']", ["no", "yes", "no", "no"], "never is 'yse', .* did you mean 'yes'?"),
        ("y", [1.0, 2.0, float("inf"), 0.0], "column 'y' must be finite, got inf in row 2"),
        ("log(y)", [1, 2, 0, 1], r"the response 'log\(y\)' must be finite, got -inf in row 2"),
        ("log(y)", ["a", "b", "a", "a"], "cannot be evaluated"),
        ("n | trials(y)", ["a", "b", "a", "a"], "the trials in .* must be numbers, got 'a'"),
        ("y", pd.to_datetime(["2020"] * 4), "neither numbers nor text"),
    ],
)
def test_errors(left: str, values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _build(left, values)
