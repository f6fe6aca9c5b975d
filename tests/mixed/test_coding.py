"""The coding of terms is that of formulae, and new data get the same."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from formulae import design_matrices
from formulae.environment import Environment

from mlmcgrad.mixed.design import Coding, build
from tests.mixed.tables import table

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
    data = table()
    space = Environment([{"np": SimpleNamespace(log=np.log), "log": np.log}])
    expected = design_matrices(f"y ~ {terms}", data, env=space).common
    design = build(f"y ~ {terms} + (1 | g)", data)
    np.testing.assert_array_equal(design.fixed.numpy(), expected.design_matrix)
    assert list(design.names) == list(expected.as_dataframe().columns)


@pytest.mark.parametrize("terms", TERMS)
def test_a_coding_from_a_file_codes_new_data_in_the_same_way(terms: str) -> None:
    data = table()
    design = build(f"y ~ {terms} + (1 + scale(x) + a | g)", data)
    coding = Coding.from_state(json.loads(json.dumps(design.coding.state())))
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


def test_errors_of_formulae_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for terms in ("{a + 1}", "T(a, ref='none')", "log(a)", "scale(a)"):
        with pytest.raises(ValueError, match=r"cannot be evaluated: .*; check what") as caught:
            build(f"y ~ {terms} + (1 | g)", table())
        assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_values_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match=r"'log\(h\)' in the formula .* got -inf in row"):
        build("y ~ log(h) + (1 | g)", table())
    with pytest.raises(ValueError, match=r"the offset in the formula .* must be finite, got -inf"):
        build("y ~ offset(log(h)) + (1 | g)", table())


def test_two_columns_of_one_name() -> None:
    with pytest.raises(ValueError, match=r"two columns called 'I\(x \+ z / c\)'; compute one"):
        build("y ~ {(x + z) / c} + {x + z / c} + (1 | g)", table())
