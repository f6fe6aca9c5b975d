"""What a formula says, without any data.

    response ~ terms + offset(x) + (terms | factor) + …

The syntax is that of `formulae`. Read here are the parts that its own description of a model loses
or does not have: which random effects are correlated (those of one bar), `y | trials(n)`, offsets
apart from the terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, final

from formulae.expr import Assign, Binary, Call, Literal, Unary, Variable
from formulae.resolver import Resolver
from formulae.terms import Intercept, NegatedIntercept
from formulae.terms.call_resolver import CallResolver
from formulae.terms.terms import Model
from formulae.token import Token

from mlmcgrad.mixed import syntax
from mlmcgrad.mixed.syntax import CODING, HINT, KEEPING, Node, bare, callee, is_binary, misread

# formulae has no types: one of its terms; an expression with eval(data, environment).
Term: TypeAlias = Any
Lazy: TypeAlias = Any


@final
@dataclass(frozen=True)
class Response:
    """The left side: y, y['level'], f(y), proportion(y, n) or y | trials(n).

    Args:
        text: as it is written.
        value: what gives y.
        level: the level that counts as 1, if one is named.
        trials: what gives the numbers of trials, if they are not 1.
        columns: names of the columns in `value`.
        trial_columns: names of the columns in `trials`.
    """

    text: str
    value: Lazy
    level: str | None
    trials: Lazy | None
    columns: frozenset[str]
    trial_columns: frozenset[str]


@final
@dataclass(frozen=True)
class Bar:
    """One (terms | factors): the effects of one bar are correlated.

    Args:
        terms: the intercept and the terms on the left.
        factors: for each factor on the right the columns whose combinations are its groups.
    """

    terms: tuple[Term, ...]
    factors: tuple[tuple[str, ...], ...]


@final
@dataclass(frozen=True)
class Formula:
    """The parts of a formula.

    Args:
        text: the formula.
        response: its left side.
        fixed: terms of the fixed effects, the intercept first.
        offsets: what is added to the linear predictor.
        bars: the random effects.
        predictors: columns that fixed and random effects and offsets are made of.
        coded: those of them inside C(), S() or T().
    """

    text: str
    response: Response
    fixed: tuple[Term, ...]
    offsets: tuple[Lazy, ...]
    bars: tuple[Bar, ...]
    predictors: frozenset[str]
    coded: frozenset[str]

    @property
    def grouping(self) -> frozenset[str]:
        """Columns that make groups."""
        return frozenset(c for bar in self.bars for factor in bar.factors for c in factor)


def parse(text: str) -> Formula:
    """Read a formula.

    Args:
        text: for example "y ~ x + (1 | g)".

    Returns:
        Its parts.

    Example:
        >>> parse("y ~ x + (1 | a/b)").bars[0].factors
        (('a',), ('a', 'b'))
    """
    left, right = syntax.sides(text)
    bars: list[Node] = []
    offsets: list[Node] = []
    rest: list[tuple[str, Node]] = []
    for sign, node in syntax.items(right):
        inner = bare(node)
        if is_binary(inner, "PIPE") and sign == "PLUS":
            bars.append(inner)
        elif isinstance(inner, Call) and callee(inner) == "offset" and sign == "PLUS":
            if len(inner.args) != 1:
                raise misread(text, "offset() takes one argument", "write offset(x)")
            offsets.append(inner.args[0])
        else:
            rest.append((sign, node))
    predictors = [node for _, node in rest] + [bar.left for bar in bars]
    for node in predictors:
        syntax.check_term(text, node)
    if not bars:
        raise ValueError(
            f"formula {text!r} has no grouping term such as (1 | g); without one the model is a "
            "GLM: fit it for example with statsmodels"
        )
    for node in predictors:
        syntax.check_calls(text, node)
    for node in offsets:
        syntax.check_calls(text, node, without=KEEPING + CODING)
    predictors += offsets
    fixed = _terms(text, _joined(rest))
    if not fixed:
        raise misread(text, "it has no fixed effects", "keep the intercept: y ~ 1 + (1 | g)")
    response = _response(text, left)
    columns: frozenset[str] = frozenset().union(*map(syntax.columns, predictors))
    for name in sorted(response.columns & columns):
        raise misread(text, f"the response {name!r} is a term as well", "leave it out")
    return Formula(
        text,
        response,
        fixed,
        tuple(_lazy(text, node) for node in offsets),
        tuple(_bar(text, bar) for bar in bars),
        columns,
        frozenset().union(*map(syntax.coded, predictors)),
    )


def _joined(items: list[tuple[str, Node]]) -> Node:
    tree = items[0][1]
    for sign, node in items[1:]:
        tree = Binary(tree, Token(sign, "+" if sign == "PLUS" else "-"), node)
    return tree


def _terms(text: str, tree: Node) -> tuple[Term, ...]:
    """Terms of a sum, expanded by formulae; the intercept comes first."""
    try:
        found = Resolver(tree).resolve()
    except Exception as error:
        raise misread(text, syntax.reason(error), HINT) from None
    terms = found.common_terms if isinstance(found, Model) else [found]
    kept = [term for term in terms if not isinstance(term, NegatedIntercept)]
    return tuple(sorted(kept, key=lambda term: not isinstance(term, Intercept)))


def _lazy(text: str, node: Node) -> Lazy:
    try:
        return CallResolver(node).resolve()
    except Exception as error:
        raise misread(text, syntax.reason(error), HINT) from None


def _bar(text: str, node: Node) -> Bar:
    # As for fixed effects there is an intercept unless 0 takes it away: 1 goes in front.
    terms = _terms(text, _joined([("PLUS", Literal(1)), *syntax.items(bare(node.left))]))
    if not terms:
        raise misread(text, "a term (… | g) has no effects", "write (1 | g)")
    factors = []
    for factor in _terms(text, node.right):
        components = [] if isinstance(factor, Intercept) else factor.components
        if not components or not all(map(_is_column, components)):
            what = f"a grouping factor is a column or columns joined by : or /, got {factor.name}"
            raise misread(text, what, "compute it as a column first")
        factors.append(tuple(component.name for component in components))
    if not factors:
        raise misread(text, "a term (… | g) has no grouping factor", "write (1 | g)")
    return Bar(terms, tuple(factors))


def _is_column(component: Any) -> bool:
    return not hasattr(component, "call") and isinstance(component.name, str)


def _response(text: str, node: Node) -> Response:
    written = text.split("~")[0].strip()
    node, level, trials = bare(node), None, None
    if is_binary(node, "PIPE"):
        call = bare(node.right)
        if not isinstance(call, Call) or callee(call) != "trials" or len(call.args) != 1:
            raise misread(text, "the response allows | trials(n) only", "write y | trials(n) ~ …")
        node, trials = bare(node.left), call.args[0]
    elif isinstance(node, Call) and callee(node) in ("proportion", "prop", "p"):
        if len(node.args) != 2:
            raise misread(text, f"{written} needs two columns", "write proportion(successes, n)")
        node, trials = node.args
    elif isinstance(node, Call) and callee(node) in ("binary", "B"):
        if len(node.args) != 2:
            raise misread(text, f"{written} names no level", "write y['level'] ~ …")
        node, named = node.args
        named = named.value if isinstance(named, Assign) else named
        level = str(getattr(named, "value", named))
    if isinstance(node, Variable) and node.level is not None:
        level = str(node.level.value)
    for part in (node, trials):
        if part is not None:
            syntax.check_calls(text, part, without=KEEPING + CODING)
    if not syntax.columns(node) or isinstance(node, (Binary, Unary)):
        raise misread(text, f"the response {written!r} is not a column", "write {…} for a formula")
    return Response(
        written,
        _lazy(text, node),
        level,
        None if trials is None else _lazy(text, trials),
        syntax.columns(node),
        frozenset() if trials is None else syntax.columns(trials),
    )
