"""Columns: types, levels, groups; and their coding, that of formulae, also for new data."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from formulae import design_matrices
from formulae.environment import Environment

from mlmcgrad.mixed.columns import Column, coerce, describe, frame, groups, select
from mlmcgrad.mixed.design import Coding, build
from mlmcgrad.mixed.result import decoded, encoded
from tests.mixed.tables import table


def test_data_come_from_frames_dicts_and_files(tmp_path: Path) -> None:
    expected = pd.DataFrame({"x": [1, 2], "g": ["a", "b"]})
    path = tmp_path / "data.csv"
    expected.to_csv(path, index=False)
    assert frame(expected) is expected
    for data in ({"x": [1, 2], "g": ["a", "b"]}, path, str(path)):
        pd.testing.assert_frame_equal(frame(data), expected)


def test_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a pandas DataFrame, a dict .* got list"):
        frame([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the dict is not a table"):
        frame({"x": [1, 2], "y": [1]})
    with pytest.raises(FileNotFoundError, match="there is no file 'nothing"):
        frame("nothing.csv")
    path = tmp_path / "empty.csv"
    path.write_text("")
    with pytest.raises(ValueError, match=r"empty\.csv' is not a table: No columns"):
        frame(path)


def test_unknown_columns() -> None:
    data = pd.DataFrame([[1, 2, 3]], columns=["age", "age", "urban"])
    with pytest.raises(ValueError, match=r"no column 'urbna', .* did you mean 'urban'?"):
        select(data, {"urbna"})
    with pytest.raises(ValueError, match="data has 2 columns called 'age'; rename"):
        select(data, {"age"})
    with pytest.raises(ValueError, match="'Intercept' is reserved for the intercept; rename"):
        select(pd.DataFrame({"Intercept": [1]}), {"Intercept"})
    wide = pd.DataFrame({f"v{i}": [0] for i in range(9)})
    with pytest.raises(ValueError, match="'v4' and 4 more"):
        select(wide, {"x"})


@pytest.mark.parametrize(
    ("values", "column"),
    [
        (pd.Series([1, 2]), Column(True)),
        (pd.Series([0.5, 2.0]), Column(True)),
        (pd.Series([True, False]), Column(True)),
        (pd.Series([1, 2], dtype="Int64"), Column(True)),
        (pd.Series([1, 2.5], dtype=object), Column(True)),
        (pd.Series(["b", "a"]), Column(False, ("a", "b"))),
        (pd.Series(["b", "a"], dtype=object), Column(False, ("a", "b"))),
        (pd.Series(pd.Categorical(["b", "a"], ["b", "c", "a"])), Column(False, ("b", "a"))),
        (pd.Series(pd.Categorical([3, 1])), Column(False, (1, 3))),
        (pd.Series(pd.cut([0.5, 1.5], [0, 1, 2])), Column(False, ("(0, 1]", "(1, 2]"))),
    ],
)
def test_numbers_and_levels(values: Any, column: Column) -> None:
    assert describe(values, coded=False) == column
    coded = coerce(values, column)
    if column.number:
        assert coded.dtype in (np.int64, np.float64)
    else:
        assert list(coded.cat.categories) == list(column.levels)
        assert list(coded.astype(str)) == list(values.astype(str))


def test_numbers_that_are_coded_have_levels() -> None:
    assert describe(pd.Series([3, 1, 3]), coded=True) == Column(True, (1, 3))
    with pytest.raises(ValueError, match=r"'c' has the level 2\.0, which does not occur in"):
        coerce(pd.Series([1.0, 2.0], name="c"), Column(True, (1, 3)))


def test_columns_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="neither numbers nor text, such as 1 "):
        describe(pd.Series(["a", 1], name="x"), coded=False)
    with pytest.raises(ValueError, match="neither numbers nor text, such as"):
        describe(pd.Series(pd.to_datetime(["2020-01-01"])), coded=False)
    with pytest.raises(ValueError, match="neither numbers nor text, such as"):
        describe(pd.Series([1j]), coded=False)
    lists = pd.Series([[1], [2]], name="x")
    with pytest.raises(ValueError, match=r"such as \[1\] "):
        describe(lists, coded=False)
    with pytest.raises(ValueError, match=r"such as \[1\] "):
        coerce(lists, Column(False, ("a", "b")))
    with pytest.raises(ValueError, match=r"such as \[1\] "):
        groups(lists.to_frame(), ["x"])
    with pytest.raises(
        ValueError, match="'x' must hold numbers as in the data of the fit, got 'a'"
    ):
        coerce(pd.Series(["a"], name="x"), Column(True))
    with pytest.raises(ValueError, match=r"'x' has the level 'c', .* only 'a', 'b'; leave out"):
        coerce(pd.Series(["a", "c"], name="x"), Column(False, ("a", "b")))
    with pytest.raises(ValueError, match="'x' must be finite, got inf in row 1"):
        coerce(pd.Series([0.0, np.inf], name="x"), Column(True))


def test_groups() -> None:
    data = pd.DataFrame(
        {
            "number": [10.0, 9.0, 10.0, np.nan],
            "text": ["b", "a", "b", "a"],
            "order": pd.Categorical(["z", "a", None, "z"], ["z", "a", "unused"]),
        }
    )
    for names, labels, index in (
        (["number"], ("9", "10"), [1, 0, 1, -1]),
        (["text"], ("a", "b"), [1, 0, 1, 0]),
        (["order"], ("z", "a"), [0, 1, -1, 0]),
        (["text", "order"], ("a:z", "a:a", "b:z"), [2, 1, -1, 0]),
        (["number", "text", "order"], ("9:a:a", "10:b:z"), [1, 0, -1, -1]),
    ):
        found, where = groups(data, names)
        assert (found, where.tolist()) == (labels, index)
    assert groups(data[:0], ["text"])[0] == ()


def test_groups_with_equal_labels() -> None:
    data = pd.DataFrame({"a": ["x:y", "x"], "b": ["z", "y:z"]})
    with pytest.raises(ValueError, match="different groups of 'a:b' have the same label; rename"):
        groups(data, ["a", "b"])


TERMS = [
    "x + a*b",
    "(a + b):c",
    "(a + b):C(c)",
    "0 + a + a:x",
    "a:b",
    "scale(x)*a + center(z):b",
    "scale(log(z)) + x:a",
    "np.log(z) + S(a) + T(b, ref='v')",
    "C(c, Sum) + C(a, Treatment('q')) + {a == 'p'}:x",
    "{x ** 2} + C(c) + standardize(z)",
    "0 + a:b + z",
    "{(x + z) / c} + {x > 0}",
]


@pytest.mark.parametrize("terms", TERMS)
def test_columns_are_those_of_formulae(terms: str) -> None:
    """Also their names, but formulae leaves out the brackets inside an expression."""
    data = table()
    space = Environment([{"np": SimpleNamespace(log=np.log), "log": np.log}])
    expected = design_matrices(f"y ~ {terms}", data, env=space).common
    design = build(f"y ~ {terms} + (1 | g)", data)
    np.testing.assert_array_equal(design.fixed.numpy(), expected.design_matrix)
    names = [name.replace("I((x + z) / c)", "I(x + z / c)") for name in design.names]
    assert names == list(expected.as_dataframe().columns)


@pytest.mark.parametrize("terms", TERMS)
def test_a_coding_from_a_file_codes_new_data_in_the_same_way(terms: str) -> None:
    data = table()
    design = build(f"y ~ {terms} + (1 + scale(x) + a | g)", data)
    coding = decoded(Coding, json.loads(json.dumps(encoded(design.coding))))
    assert coding == design.coding
    for rows in ([0], [5, 3], list(range(60))):
        new = coding.design(data.iloc[rows].drop(columns=["y"]))
        assert torch.equal(new.fixed, design.fixed[rows])
        assert torch.equal(new.effects[0].columns, design.effects[0].columns[rows])
        assert torch.equal(new.effects[0].index, design.effects[0].index[rows])
        assert (new.names, new.effects[0].terms) == (design.names, design.effects[0].terms)
        assert new.y.isnan().all()


def test_the_order_of_a_categorical_is_kept() -> None:
    data = table()
    for ordered in (False, True):
        data["a"] = data["a"].astype(str).astype("category")
        data["a"] = data["a"].cat.set_categories(["r", "none", "p", "q"], ordered=ordered)
        design = build("y ~ a + C(a):x + (1 | g)", data)
        assert design.names[:3] == ("Intercept", "a[p]", "a[q]")
        new = design.coding.design(data[data["a"] == "p"])
        assert new.fixed[:, :3].unique(dim=0).tolist() == [[1.0, 1.0, 0.0]]


def test_errors_of_evaluation_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ValueError, match=r"T\(a, ref='none'\)\" names the level 'none', .* only 'p'"
    ):
        build("y ~ T(a, ref='none') + (1 | g)", table())
    for terms in ("{a + 1}", "log(a)", "scale(a)", "{a < 'q'}", "C(c):log(a)"):
        with pytest.raises(ValueError, match=r"cannot be evaluated: .*; check the") as caught:
            build(f"y ~ {terms} + (1 | g)", table())
        assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_values_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match=r"'log\(h\)' in the formula .* got -inf in row"):
        build("y ~ log(h) + (1 | g)", table())
    with pytest.raises(ValueError, match=r"offset\(log\(h\)\) must be finite, got -inf"):
        build("y ~ offset(log(h)) + (1 | g)", table())


def test_two_columns_of_one_name() -> None:
    data = table().assign(**{"a[q]": range(60)})
    with pytest.raises(ValueError, match=r"two columns called 'a\[q\]'; compute one of them"):
        build("y ~ a + `a[q]` + (1 | g)", data)


def test_columns_may_have_any_name() -> None:
    """Names of contrasts, functions and Python's own words too, quoted where they hold signs."""
    data = table()
    names = ["Sum", "log", "class", "np", "_x", "_", "Sepal.Length", "x + z", "µ", "T", "a:b"]
    for i, name in enumerate(names):
        data[name] = data["x"] ** (i % 3 + 1) + data["z"] * (i + 2) ** 0.5 + data["h"] * i
    for name in names:
        written = f"`{name}`" if set(name) & set(" :") else name
        design = build(f"y ~ {written} + exp(-{written}) + (1 | g)", data)
        assert design.names[1] == name
        assert design.fixed[:, 1].tolist() == data[name].tolist()
    both = build("y ~ `x + z` + {x + z} + C(c, Sum):Sum + (1 | g)", data)
    assert both.names[1:3] == ("x + z", "I(x + z)")
    assert both.fixed[:, 1].tolist() == data["x + z"].tolist()
    assert both.fixed[:, 2].tolist() == (data["x"] + data["z"]).tolist()
