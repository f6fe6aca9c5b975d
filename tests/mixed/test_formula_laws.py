"""Drawn formulas: columns against patsy and against all dummies, arithmetic against Python's."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from patsy import dmatrix

from mlmcgrad.mixed import columns
from mlmcgrad.mixed.columns import Values, describe
from mlmcgrad.mixed.design import build
from mlmcgrad.mixed.formula import _UFUNCS, parse

NUMBERS = ("x", "z", "np.log(w)", "center(v)")
DRAWN = 250  # formulas, each with a sum of terms for the fixed and one for the random effects


def _data() -> pd.DataFrame:
    """Return each combination of levels four times, with numbers."""
    cells = pd.MultiIndex.from_product([list("pqr"), list("uv"), list("lmo"), [1, 2, 3], range(4)])
    random = np.random.default_rng(0)
    numbers = {name: random.uniform(1.0, 2.0, len(cells)) for name in ("y", "x", "z", "w", "v")}
    data = cells.to_frame(index=False, name=["a", "b", "k", "c", "g"])
    return data.assign(**numbers, h=data["g"])


def _sum(random: Random, most: int) -> str:
    """Draw a sum of terms in which no two differ only in their contrasts."""
    text = random.sample(("a", "b", "k", random.choice(("C(c)", "C(c, Sum)"))), 3)
    parts = [*text, *random.sample(NUMBERS, 2)]
    if random.random() < 0.2:
        parts = [
            part.replace("a", "C(a, Treatment('q'))") if part == "a" else part for part in parts
        ]

    def some(count: int) -> list[str]:
        return random.sample(parts, count)

    def term() -> str:
        kind = random.randrange(8)
        if kind == 0:
            return f"({' + '.join(some(2))}):{some(1)[0]}"
        if kind == 1:
            return f"({' + '.join(some(3))})**2"
        if kind == 2:
            return "/".join(some(2))
        if kind == 3:
            return "*".join(some(random.randint(2, 3)))
        return ":".join(some(random.randint(1, 4)))

    terms = " + ".join(term() for _ in range(random.randint(1, most)))
    if random.random() < 0.25:
        return f"0 + {terms}"
    return f"{terms} - {some(1)[0]}" if random.random() < 0.1 else terms


def _spans(basis: NDArray[np.float64], columns: NDArray[np.float64]) -> bool:
    """Return whether columns are combinations of a basis of full rank."""
    q, _ = np.linalg.qr(basis)
    return bool(np.abs(columns - q @ (q.T @ columns)).max() < 1e-8)


def _dummies(right: str, data: pd.DataFrame) -> NDArray[np.float64]:
    """Return the columns of all terms, with a column for every level."""
    numbers = {"x": data["x"], "z": data["z"], "np.log(w)": np.log(data["w"])}
    numbers["center(v)"] = data["v"] - data["v"].mean()
    found = []
    for term in parse(f"y ~ 1 + ({right} | g)").random[0].terms:
        block = np.ones((len(data), 1))
        for part in term:
            own = numbers.get(part.name)
            own = own.to_frame() if own is not None else pd.get_dummies(data[part.column])
            block = (block[:, :, None] * own.to_numpy(float)[:, None, :]).reshape(len(data), -1)
        found.append(block)
    return np.concatenate(found, 1)


def _mismatches(count: int) -> Iterator[tuple[str, str]]:
    """Iterate over sums of terms whose columns are not those of patsy, and how they differ."""
    random, data = Random(1), _data()
    for _ in range(count):
        sums = _sum(random, 3), _sum(random, 2)
        try:
            design = build(f"y ~ {sums[0]} + (1 | h) + ({sums[1]} | g)", data)
        except ValueError as error:
            yield " and ".join(sums), str(error)
            continue
        for right, own in zip(sums, (design.fixed, design.effects[1].columns), strict=True):
            other = np.asarray(dmatrix(right, data))
            if own.shape != other.shape or not _spans(own.numpy(), other):
                yield right, "not the columns of patsy"
            if not _spans(own.numpy(), _dummies(right, data)):
                yield right, "not all dummies"


def test_columns_span_those_of_patsy_and_have_the_rank_of_all_dummies() -> None:
    assert list(_mismatches(DRAWN)) == []


def test_a_coding_that_leaves_out_one_level_of_everything_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        columns, "_blocks", lambda terms, coded: [[(c, False) for c in term] for term in terms]
    )
    assert len(list(_mismatches(10))) > 3


@pytest.mark.parametrize(
    ("right", "count"),
    [
        ("a:b:k + (1 | g)", 18),
        ("a:b + a + c + (1 | g)", 7),
        ("c + b:a + a:b + (1 | g)", 7),
        ("0 + a:b:k + x + (1 | g)", 19),
        ("x + a:b:x + (1 | g)", 7),
        ("z:x + a:x:z + (1 | g)", 4),
    ],
)
def test_the_number_of_columns(right: str, count: int) -> None:
    """The first three had too few columns, or were refused."""
    data = _data()
    assert build(f"y ~ {right}", data).fixed.shape[1] == count
    effects = build(f"y ~ 1 + ({right.replace(' + (1 | g)', ' | g)')}", data).effects[0]
    assert effects.columns.shape[1] == count


def _expression(random: Random, depth: int) -> str:
    if depth == 0 or random.random() < 0.15:
        return random.choice(("x", "z", "n", "2", "3", "0.5", "1.5"))
    one, two = (_expression(random, depth - 1) for _ in range(2))
    kind = random.randrange(12)
    if kind < 7:
        return f"{one} {random.choice(('+', '-', '*', '/', '**', '**', '**'))} {two}"
    if kind < 9:
        return f"-{one}"
    if kind == 9:
        return f"({one})"
    if kind == 10:
        return f"minimum({one}, {two})"
    return f"{random.choice(('exp', 'log', 'np.sqrt', 'abs'))}({one})"


def _value(expression: str, data: pd.DataFrame) -> pd.Series:
    (component,) = parse(f"y ~ 0 + {{{expression}}} + (1 | g)").fixed[0]
    return Values(expression, data).evaluate(component)


def _python(expression: str, data: pd.DataFrame) -> NDArray[np.float64]:
    names = {"np": np, "exp": np.exp, "log": np.log, "abs": np.abs, "minimum": np.minimum}
    numbers = {"x": data["x"].to_numpy(), "z": data["z"].to_numpy(), "n": data["n"].to_numpy(float)}
    return np.broadcast_to(eval(expression, {}, {**names, **numbers}), len(data["x"]))


def test_arithmetic_is_that_of_python() -> None:
    random = Random(2)
    data = _data()[:5].assign(x=[-1.5, -0.3, 0.2, 1.0, 2.5], n=[1, 2, 3, 4, 5])
    compared = 0
    for _ in range(1000):
        expression = _expression(random, 4)
        with np.errstate(all="ignore"):
            try:
                expected = _python(expression, data)
            # Of numbers without a column, which are whole in Python and floats in a formula.
            except (OverflowError, ValueError, ZeroDivisionError):
                continue
        if np.iscomplexobj(expected):  # a root of a negative number, NaN in a formula
            continue
        np.testing.assert_allclose(_value(expression, data), expected, rtol=1e-12)
        compared += 1
    assert compared > 700


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("-x**2", "-(x**2)"),
        ("2**3**2", "2**(3**2)"),
        ("x - z - n", "(x - z) - n"),
        ("x / z * n", "(x / z) * n"),
        ("-x**-z", "-(x**(-z))"),
        ("2*-x", "2*(-x)"),
        ("x + z > n", "(x + z) > n"),
    ],
)
def test_precedence(expression: str, same: str) -> None:
    data = _data()[:8].assign(n=range(1, 9))
    assert _value(expression, data).equals(_value(same, data))


def test_terms_have_the_name_that_the_formula_gives_them() -> None:
    (one,) = parse("y ~ 0 + exp(-(x**2)) + (1 | g)").fixed[0]
    (two,) = parse("y ~ 0 + exp(-x**2) + (1 | g)").fixed[0]
    (three,) = parse("y ~ 0 + exp((-x)**2) + (1 | g)").fixed[0]
    assert [part.name for part in (one, two, three)] == [
        "exp(-(x**2))",
        "exp(-x**2)",
        "exp((-x)**2)",
    ]
    assert one == two != three


def test_whole_numbers_do_not_overflow() -> None:
    data = _data()[:4].assign(n=[10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6])
    assert describe(data["n"], coded=False).number
    assert _value("n**4", data).tolist() == [1e24, 1.6e25, 8.1e25, 2.56e26]


def test_no_function_mixes_the_rows() -> None:
    """Each allowed function gives a row the same value, whichever other rows there are."""
    data, used = _data()[:7], 0
    for name, function in _UFUNCS.items():
        expression = f"{name}({', '.join('xzw'[: function.nin])})"
        try:
            whole = _value(expression, data)
        except ValueError:  # of whole numbers or dates only
            continue
        used += 1
        rows = [_value(expression, data.iloc[[i]]).iloc[0] for i in range(7)]
        np.testing.assert_allclose(whole.to_numpy(float), np.array(rows, float), rtol=1e-14)
    assert used > 50
    assert not {"vecdot", "matmul", "vecmat", "matvec"} & set(_UFUNCS)
