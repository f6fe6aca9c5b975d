from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmcgrad.mixed.formula import Formula, Term, parse, printable


def _names(terms: Iterable[Term]) -> list[str]:
    return [":".join(part.name for part in term) or "Intercept" for term in terms]


def _fixed(text: str) -> list[str]:
    return _names(parse(text).fixed)


def _bars(formula: Formula) -> list[tuple[list[str], list[str]]]:
    return [
        (_names(term.terms), [":".join(factor) for factor in term.factors])
        for term in formula.random
    ]


def test_fixed_effects() -> None:
    assert _fixed("y ~ x + (1 | g)") == ["Intercept", "x"]
    assert _fixed("y ~ (1 | g)") == ["Intercept"]
    assert _fixed("y ~ 0 + x + (1 | g)") == ["x"]
    assert _fixed("y ~ (1 | g) + x - 1") == ["x"]
    assert _fixed("y ~ 0 + x + (1 | g) + 1") == ["Intercept", "x"]
    assert _fixed("y ~ a*b + (1 | g)") == ["Intercept", "a", "b", "a:b"]
    assert _fixed("y ~ (a + b)**2 + {x ** 2} + (1 | g)") == [
        "Intercept",
        "a",
        "b",
        "a:b",
        "I(x ** 2)",
    ]
    assert _fixed("y ~ 0 + (a + b)**2:c + (1 | g)") == ["a:c", "b:c", "a:b:c"]


@pytest.mark.parametrize(
    "text",
    [
        "y ~ x + (1 | g)",
        "y ~ 0 + a*b + offset(log(n)) + (1 + x || g) + (0 + z | g:h)",
        "proportion(y, n) ~ `a b` + C(c, Sum):x + poly(x, 2) + {-x ** 2} + (1 | g + h)",
        "y | trials(n) ~ exp(-`if`) + T(v, ref='k') + (a/b | g/h)",
    ],
)
def test_a_formula_is_written_as_it_is_read(text: str) -> None:
    formula = parse(text)
    again = parse(str(formula))
    assert (again.fixed, again.offsets) == (formula.fixed, formula.offsets)
    assert [(r.terms, r.correlated) for r in again.random] == [
        (r.terms, r.correlated) for r in formula.random for _ in r.factors
    ]
    assert [f for r in again.random for f in r.factors] == [
        f for r in formula.random for f in r.factors
    ]
    assert str(again) == str(formula)


def test_control_characters_are_spelled_out() -> None:
    assert printable("a\x1b[2J\n\u202eß") == r"a\x1b[2J\n\u202eß"


def test_terms_that_can_be_dropped() -> None:
    found = dict(parse("y ~ a*b + x + (1 + x | g) + (1 | h)").smaller())
    assert {name: str(smaller) for name, smaller in found.items()} == {
        "x": "y ~ 1 + a + b + a:b + (1 + x | g) + (1 | h)",
        "a:b": "y ~ 1 + a + b + x + (1 + x | g) + (1 | h)",
        "x in (1 + x | g)": "y ~ 1 + a + b + a:b + x + (1 | g) + (1 | h)",
        "(1 | h)": "y ~ 1 + a + b + a:b + x + (1 + x | g)",
    }


@pytest.mark.parametrize(
    ("term", "bars"),
    [
        ("(1 | g)", [(["Intercept"], ["g"])]),
        ("(x | g)", [(["Intercept", "x"], ["g"])]),
        ("(1 + x | g)", [(["Intercept", "x"], ["g"])]),
        ("(0 + x | g)", [(["x"], ["g"])]),
        ("(-1 + x | g)", [(["x"], ["g"])]),
        ("(x - 1 | g)", [(["x"], ["g"])]),
        ("((x + z) | g)", [(["Intercept", "x", "z"], ["g"])]),
        ("(1 | g) + (0 + x | g)", [(["Intercept"], ["g"]), (["x"], ["g"])]),
        ("(1 | a/b)", [(["Intercept"], ["a", "a:b"])]),
        ("(1 | a/b/c)", [(["Intercept"], ["a", "a:b", "a:b:c"])]),
        ("(x | a:b)", [(["Intercept", "x"], ["a:b"])]),
        ("(1 | g + h)", [(["Intercept"], ["g", "h"])]),
        ("(a*x | g)", [(["Intercept", "a", "x", "a:x"], ["g"])]),
    ],
)
def test_random_effects(term: str, bars: list[tuple[list[str], list[str]]]) -> None:
    assert _bars(parse(f"y ~ z + {term}")) == bars


def test_columns() -> None:
    formula = parse("y ~ log(x) + C(c) + `a b`:z + offset(w) + (1 + T(v, ref='k') | g:h)")
    assert formula.predictors == {"x", "c", "a b", "z", "w", "v"}
    assert formula.coded == {"c", "v"}
    assert formula.grouping == {"g", "h"}
    assert len(formula.offsets) == 1
    assert parse("y ~ C(c, Sum) + (1 | g)").predictors == {"c"}


def test_responses() -> None:
    for text in ("proportion(y, n)", "prop(y, n)", "p(y, n)", "y | trials(n)", "(y | trials(n))"):
        response = parse(f"{text} ~ x + (1 | g)").response
        assert response.value.columns == {"y"}
        assert response.trial_columns == {"n"}
        assert response.text == text
    for text in ("use['yes']", "use[yes]", "binary(use, 'yes')", "B(use, success='yes')"):
        assert parse(f"{text} ~ x + (1 | g)").response.level == "yes"
    assert parse("y | trials(n + m) ~ (1 | g)").response.trial_columns == {"n", "m"}
    assert parse("y | trials(5) ~ (1 | g)").response.trial_columns == frozenset()
    assert parse("np.log(y) ~ (1 | g)").response.value.columns == {"y"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "formula must be a string"),
        ("y ~ x", r"no grouping term such as \(1 \| g\).*GLM.*statsmodels"),
        ("y ~ x z + (1 | g)", "invalid syntax at 'x z.*join terms with +"),
        ("y ~ x + 1 | g", "put brackets around"),
        ("y ~ x ** 2 + (1 | g)", r"write \{x \*\* 2\}"),
        ("y ~ 2 + (1 | g)", "as terms are 0 and 1, got 2"),
        ("y ~ True + (1 | g)", "as terms are 0 and 1, got True"),
        ("y ~ x * (1 | g)", "cannot be part of another term; add it"),
        ("y ~ x - (1 | g)", "cannot be part of another term; add it"),
        ("y ~ lgo(x) + (1 | g)", r"calls lgo\(\).*did you mean 'log'"),
        ("y ~ np.mean(x) + (1 | g)", r"calls np.mean\(\).*compute it as a column first"),
        ("y ~ C(x > 3) + (1 | g)", r"C\(\) takes the name of a column"),
        ("y ~ x + (1 | g", r"'\(' was never closed; join terms"),
        ("y ~ x + (1 | log(g))", r"grouping factor is a column.*got log\(g\)"),
        ("y ~ x + (1 | 1)", "grouping factor is a column"),
        ("y ~ x + (1 | 0)", "no grouping factor"),
        ("y ~ x$ + (1 | g)", r"invalid syntax at '\$.*quote unusual names as `…`"),
        ("y ~ `x + (1 | g)", "invalid syntax at '`x"),
        ("x + (1 | g)", "it has no response"),
        (" ~ x + (1 | g)", "it has no response"),
        ("y ~ 0 + (1 | g)", "it has no fixed effects; keep the intercept"),
        ("y ~ x + (0 | g)", r"has no effects; write \(1 \| g\)"),
        ("y ~ (x + z)^2 + (1 | g)", r"\^ is not supported; write \*\*"),
        ("y ~ x # + z", "# is not supported; leave out comments"),
        ("y ~ log(x, z) + (1 | g)", r"log\(\) takes 1 columns, got 2"),
        ("y ~ vecdot(x, z) + (1 | g)", r"calls vecdot\(\).*compute it as a column first"),
        ("y ~ log(x:z) + (1 | g)", ": is not allowed in an expression"),
        ("y ~ {1 < x < 2} + (1 | g)", "1 < x < 2 is not allowed in an expression"),
        ("y ~ (x + z)**1.5 + (1 | g)", "exponent of a bracket is a number ≥ 1, got 1.5"),
        ("y ~ 0:x + (1 | g)", r"0 cannot be part of a product; write 0 \+"),
        ("y ~ C(x, 'u') + (1 | g)", "is not a contrast or a level; write for example C"),
        ("y ~ T(x, ref=[1]) + (1 | g)", "is not a contrast or a level"),
        ("y ~ C(x, levels='u') + (1 | g)", "is not a contrast or a level"),
        ("y, z ~ x + (1 | g)", "is not a sum of terms"),
        ("y ~ x > 3", "is not a sum of terms"),
        ("y ~ x ~ z", "more than one '~'"),
        ("y | weights(n) ~ x + (1 | g)", r"allows \| trials\(n\) only"),
        ("proportion(y) ~ x + (1 | g)", "needs two arguments"),
        ("binary(y) ~ x + (1 | g)", "needs two arguments"),
        ("1 ~ x + (1 | g)", "the response '1' is not a column"),
        ("y + z ~ x + (1 | g)", r"the response 'y \+ z' is not a column"),
        ("scale(y) ~ x + (1 | g)", r"calls scale\(\)"),
        ("y ~ x[a] + (1 | g)", r"response can name a level, got x\[…\]; write \{x == 'a'\}"),
        ("y ~ x:offset(z) + (1 | g)", r"offset\(\) can only be added"),
        ("y ~ offset() + (1 | g)", r"offset\(\) can only be added; write \+ offset\(x\)"),
        ("y ~ offset(scale(x)) + (1 | g)", r"calls scale\(\)"),
        ("y ~ offset(x | z) + (1 | g)", r"x \| z is not allowed in an expression"),
        ("y ~ -x + (1 | g)", r"'-x' is not a term; write \{…\} for arithmetic, as in .* \{-x\}"),
        ("y ~ x + log(y) + (1 | g)", "the response 'y' is also a term; leave it out"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


@given(st.integers(0, 40), st.sampled_from([*"()|+-~:*/,'`{}[] 01xy.^&", ""]), st.integers(0, 3))
def test_a_typo_is_read_or_is_a_value_error(place: int, typed: str, deleted: int) -> None:
    text = "y | trials(n) ~ a*x + scale(z) + (x | g/h)"
    try:
        parse(text[:place] + typed + text[place + deleted :])
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
