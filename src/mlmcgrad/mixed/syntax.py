"""The syntax tree of a formula, from the parser of `formulae`, and what is refused in it.

Functions in a formula work elementwise (NumPy's `ufunc`s, as `log(x)` or `np.log(x)`), or keep two
numbers (`center`, `scale`), or code levels (`C`, `S`, `T`): only these mean the same for new data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from formulae.expr import Assign, Binary, Call, Grouping, Literal, QuotedName, Unary, Variable
from formulae.parser import Parser
from formulae.scanner import Scanner

# formulae has no types: a node of its tree.
Node: TypeAlias = Any

# log, exp, sqrt, …
ELEMENTWISE = {n: f for n, f in vars(np).items() if isinstance(f, np.ufunc) and f.nout == 1}
KEEPING = ("center", "scale", "standardize")
CODING = ("C", "S", "T")
CONTRASTS = ("Treatment", "Sum")
HINT = "write for example 'y ~ 1 + x + (1 + x | group)'"


def sides(text: str) -> tuple[Node, Node]:
    """Left and right side of a formula; the right one begins with 1 + …."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"formula must be a string such as 'y ~ x + (1 | g)', got {text!r}")
    try:
        tokens = Scanner(text).scan()
    except Exception as error:
        raise misread(text, reason(error), f"{HINT}; a name with other signs is `…`") from None
    for one, two in pairwise(tokens):
        if one.kind == two.kind == "PIPE":
            raise misread(text, "|| is not known", "uncorrelated effects: (1 | g) + (0 + x | g)")
    parser = Parser(tokens)
    try:
        tree = parser.parse()
    except Exception as error:
        raise misread(text, reason(error), HINT) from None
    # formulae ignores what follows a complete expression.
    if not parser.at_end():
        token = parser.peek()
        remedy = "put brackets around (… | …)" if token.kind == "PIPE" else "join terms with +"
        raise misread(text, f"{token.lexeme!r} was not expected there", remedy)
    if not is_binary(tree, "TILDE"):
        raise misread(text, "it has no response", HINT)
    return tree.left, tree.right


def check_term(text: str, node: Node) -> None:
    """Refuse what formulae reads in another way than it looks."""
    if isinstance(node, Call):
        if callee(node) == "offset":
            raise misread(text, "offset() stands in a product or is subtracted", "add it")
        return
    if is_binary(node, "PIPE"):
        raise misread(text, "a term (… | g) cannot be part of another term", "add it with +")
    power = is_binary(node, "STAR_STAR")
    if power and not isinstance(node.left, Grouping):
        raise misread(text, "x ** 2 is x where terms are added", "write {x ** 2}")
    if isinstance(node, Literal) and (type(node.value) is not int or node.value not in (0, 1)):
        what = f"only 0 and 1 are terms (no intercept, intercept), got {node.value!r}"
        raise misread(text, what, "a constant is added by offset(…)")
    if isinstance(node, Variable) and node.level is not None:
        what = f"a level can be chosen of the response only, got {name(node)}[…]"
        raise misread(text, what, f"write {{{name(node)} == '{node.level.value}'}}")
    for child in [node.left] if power else children(node):
        check_term(text, child)


def check_calls(text: str, node: Node, without: tuple[str, ...] = ()) -> None:
    """Refuse functions that are unknown, or that would mean something else for new data."""
    allowed = [f for f in ("I", *KEEPING, *CODING, *CONTRASTS) if f not in without]
    for call in nodes(node):
        if not isinstance(call, Call):
            continue
        function = callee(call)
        plain = function.removeprefix("np.")
        if plain not in ELEMENTWISE and function not in allowed:
            raise ValueError(
                f"formula {text!r} calls {function}(), but functions in a formula must be "
                f"elementwise (log, np.exp, …) or one of {', '.join(allowed)}; compute it as a "
                f"column first{alike(plain, [*ELEMENTWISE, *allowed])}"
            )
        first = call.args[0] if call.args else None
        if function in CODING and not isinstance(first, (Variable, QuotedName)):
            raise misread(text, f"{function}() takes the name of a column", "compute it first")


def items(node: Node) -> list[tuple[str, Node]]:
    """What is added ("PLUS") or subtracted ("MINUS"), from left to right."""
    found = []
    while isinstance(node, Binary) and node.operator.kind in ("PLUS", "MINUS"):
        found.append((node.operator.kind, node.right))
        node = node.left
    return [("PLUS", node), *reversed(found)]


def nodes(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    for child in children(node):
        yield from nodes(child)


def children(node: Node) -> list[Node]:
    """The nodes directly below; the name of a function is not one."""
    if isinstance(node, Grouping):
        return [node.expression]
    if isinstance(node, Binary):
        return [node.left, node.right]
    if isinstance(node, Unary):
        return [node.right]
    if isinstance(node, Call):
        return list(node.args)
    return [node.value] if isinstance(node, Assign) else []


def columns(node: Node) -> frozenset[str]:
    """Names of the columns at and below a node."""
    found = {name(n) for n in nodes(node) if isinstance(n, (Variable, QuotedName))}
    return frozenset(found - set(CONTRASTS))


def coded(node: Node) -> frozenset[str]:
    """Those of the columns that stand in C(), S() or T()."""
    calls = (n for n in nodes(node) if isinstance(n, Call) and callee(n) in CODING)
    return frozenset(name(call.args[0]) for call in calls)


def name(node: Node) -> str:
    """The name of a column, without `…`."""
    return node.name.lexeme if isinstance(node, Variable) else node.expression.lexeme[1:-1]


def callee(call: Node) -> str:
    """The name of a function."""
    return call.callee.name.lexeme if isinstance(call.callee, Variable) else "…"


def bare(node: Node) -> Node:
    """A node without the brackets around it."""
    while isinstance(node, Grouping):
        node = node.expression
    return node


def is_binary(node: Node, operator: str) -> bool:
    """Whether a node is this operator between two others."""
    return isinstance(node, Binary) and node.operator.kind == operator


def alike(word: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown word, to be put behind a message."""
    close = get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def reason(error: Exception) -> str:
    """What an error of another package says, in one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def misread(text: str, what: str, remedy: str) -> ValueError:
    """The error about a formula."""
    return ValueError(f"formula {text!r}: {what}; {remedy}")
