"""Designs: parts, responses, effects that are not identified, memory."""

import math
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.mixed.design import build
from tests.mixed.tables import table

WORDS = ["none", "infinite", "mixed", "date", "lists", "g", "use", "log(", "0", "2", *"()|+~:*[{'`"]


def test_the_parts_of_a_design() -> None:
    data = table()
    design = build("use ~ x + a + offset(log(z)) + offset(2) + (1 + x | g)", data)
    assert design.coding.formula.startswith("use ~ x")
    assert (design.response, design.coding.success) == ("use", "yes")
    assert design.names == ("Intercept", "x", "a[q]", "a[r]")
    assert design.fixed.shape == (60, 4)
    assert design.fixed.dtype == design.y.dtype == design.offset.dtype == torch.float64
    torch.testing.assert_close(design.offset.numpy(), np.log(data["z"].to_numpy()) + 2.0)
    (effects,) = design.effects
    assert (effects.factor, effects.groups) == ("g", ("A", "B", "C", "D", "E"))
    assert (effects.terms, effects.blocks) == (("Intercept", "x"), (2,))
    assert effects.index.dtype == torch.int64
    assert [effects.groups[i] for i in effects.index] == data["g"].tolist()
    assert effects.columns.tolist() == [[1.0, x] for x in data["x"]]


def test_blocks_and_factors() -> None:
    design = build("y ~ x + (1 | g) + (0 + x + z | g) + (1 | a/b) + (0 + x | b:a)", table())
    first, second, third = design.effects
    assert (first.factor, first.blocks) == ("g", (1, 2))
    assert first.terms == ("Intercept", "x", "z")
    assert (second.factor, second.blocks, second.groups) == ("a", (1,), ("p", "q", "r"))
    assert (third.factor, third.terms, third.blocks) == ("a:b", ("Intercept", "x"), (1, 1))
    assert third.groups == ("p:u", "p:v", "q:u", "q:v", "r:u", "r:v")


def test_a_category_without_intercept_has_all_levels() -> None:
    """As in lme4; formulae leaves one out if (1 | g) stands elsewhere."""
    (effects,) = build("y ~ x + (0 + a | g)", table()).effects
    assert effects.terms == ("a[p]", "a[q]", "a[r]")
    (effects,) = build("y ~ x + (a | g)", table()).effects
    assert effects.terms == ("Intercept", "a[q]", "a[r]")


def test_rows_with_missing_values_are_dropped_and_counted() -> None:
    data = table().astype({"h": float})
    data.loc[3, "x"] = math.nan
    data.loc[[3, 5], "g"] = None
    data.loc[7, "y"] = math.nan
    data.loc[9, "z"] = math.nan  # not in the formula
    data.loc[11, "h"] = math.nan
    data.index = pd.Index([0] * 60)
    design = build("y ~ x + (1 | g) + (1 | h)", data)
    assert design.dropped == 4
    assert len(design.y) == 56
    assert design.effects[1].groups == ("0", "1", "2", "3")


def test_no_rows_are_left() -> None:
    data = table()
    with pytest.raises(ValueError, match=r"60 rows, none without missing .* column 'x' has no"):
        build("y ~ x + (1 | g)", data.assign(x=math.nan))
    with pytest.raises(ValueError, match="data has 0 rows"):
        build("y ~ x + (1 | g)", data[:0])
    data = pd.DataFrame({"y": [1, None], "g": [None, "a"]})
    with pytest.raises(ValueError, match="2 rows, none without missing values: each has a gap"):
        build("y ~ 1 + (1 | g)", data)


def test_new_groups_and_levels() -> None:
    coding = build("y ~ a + (1 | g) + (1 | g:h)", table()).coding
    new = coding.design({"a": ["p", "q", "r"], "g": ["B", "new", None], "h": [2.0, 2.0, 1.0]})
    assert new.effects[0].index.tolist() == [1, 5, -1]
    assert new.effects[0].groups == (*coding.groups["g"], "new")
    assert coding.groups["g:h"][int(new.effects[1].index[0])] == "B:2"
    assert new.effects[1].index[1:].tolist() == [len(coding.groups["g:h"]), -1]
    with pytest.raises(ValueError, match="'a' has the level 's', which does not occur in"):
        coding.design({"a": ["s"], "g": ["A"], "h": [1]})
    with pytest.raises(ValueError, match="column 'a' has no value in row 1"):
        coding.design({"a": ["p", None], "g": ["A", "A"], "h": [1, 1]})
    with pytest.raises(ValueError, match="data has 0 rows"):
        coding.design({"a": [], "g": [], "h": []})
    with pytest.raises(ValueError, match="data has no column 'a'"):
        coding.design({"g": ["A"], "h": [1]})


def test_a_row_for_each_group_is_a_design() -> None:
    data = table().assign(row=range(60))
    assert build("y ~ x + (1 | row)", data).effects[0].index.tolist() == list(range(60))


@given(st.integers(0, 60), st.sampled_from(WORDS), st.integers(0, 4))
def test_a_typo_is_a_model_or_a_value_error(place: int, typed: str, deleted: int) -> None:
    text = "y | trials(n) ~ a*x + scale(z) + C(c) + offset(log(z)) + (x | g/h)"
    data = table().assign(none=math.nan, infinite=math.inf, mixed=["a", 1] * 30)
    data["date"], data["lists"] = pd.Timestamp("2020-01-01"), [[1]] * 60
    try:
        build(text[:place] + typed + text[place + deleted :], data)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_memory_and_time_grow_with_rows_not_with_rows_times_groups() -> None:
    """A dense matrix of 10⁵ rows and 10⁴ groups would be 8 GB."""
    random = np.random.default_rng(0)
    rows, many = 100_000, 10_000
    data = pd.DataFrame(
        {
            "y": random.integers(0, 2, rows),
            "x": random.normal(size=rows),
            "a": random.choice(["p", "q"], rows),
            "g": [f"group {i}" for i in random.integers(0, many, rows)],
        }
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    design = build("y ~ x*a + (1 + x | g)", data)
    assert time.process_time() - started < 5.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    assert len(design.effects[0].groups) > 0.99 * many
    assert [design.effects[0].groups[i] for i in design.effects[0].index[:50]] == list(
        data["g"][:50]
    )


def test_the_library_and_the_families_need_no_pandas() -> None:
    code = (
        "import sys, mlmcgrad, mlmcgrad.mixed.families\n"
        "sys.exit(bool({'pandas', 'formulae', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
    assert design.coding.success == success
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
        ("y", ["a", "b", "c", "d"], r"numeric or have two levels, got 4 levels .*y\['a'\] ~ …"),
        ("y", ["a", "a", "a", "a"], "'y' is 'a' in all rows"),
        ("y['yse']", ["no", "yes", "no", "no"], "is never 'yse', .* did you mean 'yes'?"),
        ("y", [1.0, 2.0, float("inf"), 0.0], "column 'y' must be finite, got inf in row 2"),
        ("log(y)", [1, 2, 0, 1], r"the response 'log\(y\)' must be finite, got -inf in row 2"),
        ("log(y)", ["a", "b", "a", "a"], "cannot be evaluated"),
        ("n | trials(y)", ["a", "b", "a", "a"], "the trials in .* must be numbers, got 'a'"),
        ("y", pd.to_datetime(["2020"] * 4), "neither numbers nor text"),
    ],
)
def test_impossible_responses(left: str, values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _build(left, values)


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ("x + k + (1 | g)", "'k' is 3.0 in all rows, like the intercept; leave it out"),
        ("zero + (1 | g)", "'zero' is 0.0 in all rows, like the intercept|'zero' is 0 in all"),
        ("0 + zero + (1 | g)", "'zero' is 0 in all rows; leave it out"),
        ("x + z + w + (1 | g)", "'w' is a combination of 'x', 'z'; leave one out"),
        ("x + z + v + (1 | g)", "'v' is a combination of 'Intercept', 'x'; leave one out"),
        ("one + (1 | g)", "column 'one' is 'same' in all rows; leave it out"),
        ("C(k):x + (1 | g)", "column 'k' is 3.0 in all rows; leave it out"),
        ("x + (one | g)", "column 'one' is 'same' in all rows; leave it out"),
        ("x + (1 | one)", "'one' must have at least two groups, got 'same' only"),
        ("x + (1 | g) + (1 | g)", "effect 'Intercept' of 'g' occurs 2 times; keep one"),
        ("x + (1 | g) + (x | g)", "'Intercept' of 'g' occurs 2 times"),
        ("x + (1 | a/b) + (1 | b:a)", "'Intercept' of 'a:b' occurs 2 times"),
        ("x + (1 + k | g)", "of 'g' are indistinguishable: 'k' is a combination of 'Intercept'"),
        ("x + (1 | g) + (0 + k | g)", "are indistinguishable"),
        ("x + (1 | g) + (0 + a | g)", r"is a combination of 'a\[p\]', 'a\[q\]', 'a\[r\]'; leave"),
    ],
)
def test_effects_that_are_indistinguishable(right: str, message: str) -> None:
    data = table().assign(k=3.0, zero=0.0, one="same")
    data["w"], data["v"] = data["x"] - 2.0 * data["z"], 1.0 + data["x"]
    with pytest.raises(ValueError, match=message):
        build(f"y ~ {right}", data)


def test_effects_that_can() -> None:
    """Two indicators with variances of their own, beside an intercept, are identified."""
    data = table()
    data["u"] = (data["b"] == "u").astype(int)
    data["v"] = 1 - data["u"]
    build("y ~ x + (1 | g) + (0 + u | g) + (0 + v | g)", data)
    # A column far from 0 is not constant.
    data["time"] = 1.6e9 + data["x"]
    build("y ~ time + (1 + time | g)", data)


def test_more_levels_than_a_matrix_should_have() -> None:
    data = table(1200).assign(name=[f"name {i}" for i in range(1200)])
    with pytest.raises(
        ValueError, match=r"'name' has 1200 levels, .* use it as groups, \(1 \| name"
    ):
        build("y ~ name + (1 | g)", data)
    with pytest.raises(ValueError, match="'x' has 1200 levels"):
        build("y ~ C(x) + (1 | g)", data)


def test_more_columns_than_rows() -> None:
    with pytest.raises(ValueError, match="fixed effects must be linearly independent"):
        build("y ~ x + z + c + n + a + (1 | g)", table(5))
