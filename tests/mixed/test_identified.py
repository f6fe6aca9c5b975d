import pytest

from mlmcgrad.mixed.design import build
from tests.mixed.tables import table


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ("x + k + (1 | g)", "'k' is 3.0 in all rows, beside the intercept; leave it out"),
        ("zero + (1 | g)", "'zero' is 0.0 in all rows, beside the intercept|'zero' is 0 in all"),
        ("0 + zero + (1 | g)", "'zero' is 0 in all rows; leave it out"),
        ("x + z + w + (1 | g)", "'w' is a combination of 'x', 'z'; leave one out"),
        ("x + z + v + (1 | g)", "'v' is a combination of 'Intercept', 'x'; leave one out"),
        ("one + (1 | g)", "column 'one' is 'same' in all rows; leave it out"),
        ("C(k):x + (1 | g)", "column 'k' is 3.0 in all rows; leave it out"),
        ("x + (one | g)", "column 'one' is 'same' in all rows; leave it out"),
        ("x + (1 | one)", "'one' must have at least two groups, got 'same' only"),
        ("x + (1 | g) + (1 | g)", "effect 'Intercept' of 'g' is there 2 times; keep one"),
        ("x + (1 | g) + (x | g)", "'Intercept' of 'g' is there 2 times"),
        ("x + (1 | a/b) + (1 | b:a)", "'Intercept' of 'a:b' is there 2 times"),
        ("x + (1 + k | g)", "of 'g' cannot be told apart: 'k' is 'Intercept' up to"),
        ("x + (1 | g) + (0 + k | g)", "cannot be told apart"),
        ("x + (1 | g) + (0 + a | g)", r"'Intercept' is 'a\[p\]' \+ 'a\[q\]' \+ 'a\[r\]' up to"),
    ],
)
def test_effects_that_cannot_be_told_apart(right: str, message: str) -> None:
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
