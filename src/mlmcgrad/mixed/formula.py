"""Parse a formula, without any data.

    response ~ terms + offset(x) + (terms | factor) + …

Terms are combined by + - : * / ** as in R and lme4. Inside functions and {…} the same symbols
denote arithmetic. Formulas are parsed with Python's grammar, so -x**2 is −(x²). Columns and texts
are first replaced by `_0_`, `_1_`, …, and a:b by a ** _ ** b, which has the precedence of a colon:
above *, below the power of a bracket.

A function in a formula must have the same meaning for new data. So it either works elementwise
(NumPy's `ufunc`s, as `log(x)` or `np.log(x)`), stores some numbers (`center`, `scale`; `poly`, `bs`
and `ns`, which have several columns), or codes levels (`C`, `S`, `T`).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from mlmcgrad.mixed.bases import Basis, basis

if TYPE_CHECKING:
    from mlmcgrad.mixed.columns import Values

# log, exp, sqrt, …; a function with a signature, such as vecdot, would mix rows.
_UFUNCS: dict[str, np.ufunc] = {
    name: function
    for name, function in vars(np).items()
    if isinstance(function, np.ufunc) and function.nout == 1 and function.signature is None
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_HINT = "write for example 'y ~ 1 + x + (1 + x | group)'"
_REFUSED = {"^": "write **", "#": "leave out comments"}
_BASES = ("poly", "bs", "ns")
# A text, a quoted name, a number, or a name.
_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]+`|\.?\d[\w.]*|[^\W\d][\w.]*")
_HIDDEN = re.compile(r" ?_(\d+)_ ?")
# Control characters, separators of lines, changes of direction, halves of characters.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COLON, _BARS = "**_**", "|_|"
_PLAIN = re.compile(r"(?!(True|False|None|and|or|not|in|is|if|else|for|lambda)$)[^\W\d_][\w.]*")


@final
@dataclass(frozen=True)
class Contrast:
    """The coding of levels: Treatment with a reference level, Sum with an omitted one, Poly, …."""

    kind: str
    level: Any = None


@final
@dataclass(frozen=True)
class Component:
    """A part of a term: a column, a column with coded levels, or an expression."""

    name: str = field(compare=False)  # its text in the formula
    code: str  # its text in Python's own style; components with the same code are one
    columns: frozenset[str] = field(compare=False)  # names of its columns
    column: str | None = field(compare=False)  # name if it is one column, without arithmetic
    value: Callable[[Values], Any] = field(compare=False, repr=False)  # evaluates it
    contrast: Contrast | None = None  # in C(), S() or T()
    basis: Basis | None = None  # of poly(), bs() or ns(), which has several columns

    @property
    def source(self) -> str:
        """Its text in a formula, in which unusual names of columns are quoted."""
        if self.column is None or self.contrast is not None:
            return self.name
        return _quoted(self.column)


# The components whose product it is; the intercept has none.
Term: TypeAlias = tuple[Component, ...]


def _contrast(contrast: Contrast | None = None) -> Contrast:
    if not isinstance(contrast, Contrast | None):
        raise TypeError
    return contrast or Contrast("Treatment")


_CONTRASTS: dict[str, Callable[..., Contrast]] = {
    "C": _contrast,
    "S": lambda omit=None: Contrast("Sum", omit),
    "T": lambda ref=None: Contrast("Treatment", ref),
    "Sum": lambda omit=None: Contrast("Sum", omit),
    "Treatment": lambda reference=None: Contrast("Treatment", reference),
    "Poly": lambda: Contrast("Poly"),
    "Helmert": lambda: Contrast("Helmert"),
}


@final
@dataclass(frozen=True)
class Response:
    """The left-hand side of a formula: y, y['level'], f(y), proportion(y, n) or y | trials(n)."""

    text: str  # as written
    value: Component  # the expression of y
    level: str | None  # the level coded as 1, if the formula names one
    trials: Component | None  # the expression of the number of trials; None means 1

    @property
    def trial_columns(self) -> frozenset[str]:
        """Names of the columns in `trials`."""
        return frozenset() if self.trials is None else self.trials.columns


@final
@dataclass(frozen=True)
class RandomTerm:
    """One term (terms | factors), or (terms || factors)."""

    terms: tuple[Term, ...]  # the intercept and the terms on the left
    factors: tuple[tuple[str, ...], ...]  # for each, the columns whose combinations are its groups
    correlated: bool = True  # whether its effects are correlated; with || they are not

    def __str__(self) -> str:
        bars = "|" if self.correlated or self.terms == ((),) else "||"
        left = " + ".join(map(_source, self.terms))
        left = left if () in self.terms else f"0 + {left}"
        factors = [":".join(map(_quoted, names)) for names in self.factors]
        return " + ".join(f"({left} {bars} {factor})" for factor in factors)


@final
@dataclass(frozen=True)
class Formula:
    """The parts of a formula."""

    text: str
    response: Response
    fixed: tuple[Term, ...]  # the intercept first
    offsets: tuple[Component, ...]  # expressions added to the linear predictor
    random: tuple[RandomTerm, ...]

    @property
    def grouping(self) -> frozenset[str]:
        """Names of the columns that define groups."""
        return frozenset(c for term in self.random for factor in term.factors for c in factor)

    @property
    def components(self) -> list[Component]:
        """The components of all terms, and the offsets."""
        terms = [*self.fixed, *(term for each in self.random for term in each.terms)]
        return [*self.offsets, *(component for term in terms for component in term)]

    @property
    def predictors(self) -> frozenset[str]:
        """Names of all columns in fixed effects, random effects and offsets."""
        return frozenset(name for each in self.components for name in each.columns)

    @property
    def coded(self) -> frozenset[str]:
        """Names of the predictors inside C(), S() or T()."""
        return frozenset(name for c in self.components if c.contrast for name in c.columns)

    def __str__(self) -> str:
        """Write the formula with all its terms; `parse` reads it as the same model."""
        intercept = "1" if () in self.fixed else "0"
        terms = [intercept, *(_source(term) for term in self.fixed if term)]
        offsets = [f"offset({each.source})" for each in self.offsets]
        return f"{self.response.text} ~ {' + '.join([*terms, *offsets, *map(str, self.random)])}"

    def smaller(self) -> Iterator[tuple[str, Formula]]:
        """Yield the name of each term that can be dropped, and the formula without it.

        A term can be dropped if it is part of no other: a only after a:b, and the intercept of a
        group only after its slopes. The intercept of the fixed effects is never dropped.
        """
        for term in _outermost(self.fixed):
            rest = tuple(other for other in self.fixed if other != term)
            if term and rest:
                yield _source(term), replace(self, fixed=rest)
        parts = [replace(each, factors=(f,)) for each in self.random for f in each.factors]
        for i, part in enumerate(parts):
            for term in _outermost(part.terms):
                rest = tuple(other for other in part.terms if other != term)
                kept = [replace(part, terms=rest)] if rest else []
                random = (*parts[:i], *kept, *parts[i + 1 :])
                yield (
                    f"{_source(term)} in {part}" if rest else str(part),
                    replace(self, random=random),
                )


def parse(text: str) -> Formula:
    """Parse a formula such as "y ~ x + (1 | g)".

    Example:
        >>> parse("y ~ x + (1 | a/b)").random[0].factors
        (('a',), ('a', 'b'))
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"formula must be a string such as 'y ~ x + (1 | g)', got {text!r}")
    try:
        return _Parser(text).formula()
    except RecursionError:
        raise ValueError(f"formula {text[:60]!r}… is nested too deeply; shorten it") from None


class _Parser:
    """The state of parsing one formula: the source for Python's parser, and the replaced parts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.hidden: list[str] = []
        self.offsets: list[Component] = []
        self.random: list[RandomTerm] = []
        hidden = _TOKEN.sub(self._hide, text)
        for sign, remedy in _REFUSED.items():
            if sign in hidden:
                raise self.misread(f"{sign} is not supported", remedy)
        sides = hidden.split("~")
        if len(sides) != 2 or not sides[0].strip():
            what = "more than one '~'" if len(sides) > 2 else "no response"
            raise self.misread(f"it has {what}", _HINT)
        self.left = self._shown(sides[0])
        # In brackets a formula may have several lines; 1 is the implied intercept.
        self.source = "({}\n, 1 + {}\n)".format(*sides).replace(":", _COLON).replace("||", _BARS)
        try:
            self.tree = ast.parse(self.source, mode="eval").body
        except (SyntaxError, ValueError, MemoryError) as error:
            remedy = "join terms with +, and quote unusual names as `…`"
            raise self.misread(self._reason(error), remedy) from None
        for node in ast.walk(self.tree):
            match node:
                case ast.Name(name) if name != "_":
                    name = self._shown(name).strip("`")
                    plain = name != "_" and name.replace(".", "_").isidentifier()
                    node.id = name if plain else f"`{name}`"
                case ast.Constant(str(value)):
                    node.value = self._shown(value)[1:-1]
                case ast.keyword(str(name)):
                    node.arg = self._shown(name)

    def formula(self) -> Formula:
        """Return the parts of the formula."""
        match self.tree:
            case ast.Tuple(elts=[left, ast.BinOp(op=ast.Add() | ast.Sub()) as right]):
                fixed = _distinct(self.terms(right, top=True))
            case ast.Tuple(elts=[_, ast.BinOp(op=ast.BitOr())]):
                raise self.misread("'|' is not expected there", "put brackets around (… | …)")
            case _:
                raise self.misread("it is not a sum of terms", _HINT)
        if not self.random:
            raise ValueError(
                f"formula {self.text!r} has no grouping term such as (1 | g); without one the "
                "model is a GLM: fit it for example with statsmodels"
            )
        if not fixed:
            raise self.misread("it has no fixed effects", "keep the intercept: y ~ 1 + (1 | g)")
        response = self.response(left)
        found = Formula(self.text, response, fixed, tuple(self.offsets), tuple(self.random))
        for name in sorted(response.value.columns & found.predictors):
            raise self.misread(f"the response {name!r} is also a term", "leave it out")
        return found

    def response(self, node: ast.expr) -> Response:
        """Return the left side."""
        level: ast.expr | None = None
        trials: ast.expr | None = None
        match node:
            case ast.BinOp(node, ast.BitOr(), ast.Call(ast.Name("trials"), [trials])) | ast.Call(
                ast.Name("proportion" | "prop" | "p"), [node, trials]
            ):
                pass
            case (
                ast.Call(ast.Name("binary" | "B"), [node, level])
                | ast.Call(ast.Name("binary" | "B"), [node], [ast.keyword("success", level)])
                | ast.Subscript(node, level)
            ):
                pass
            case ast.BinOp(op=ast.BitOr()):
                what = "the response allows | trials(n) only"
                raise self.misread(what, "write y | trials(n) ~ …")
            case ast.Call(ast.Name("proportion" | "prop" | "p" | "binary" | "B")):
                remedy = "write proportion(successes, n), or binary(y, 'level')"
                raise self.misread(f"{self.left} needs two arguments", remedy)
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare)) or not _columns(node):
            what = f"the response {self.left!r} is not a column"
            raise self.misread(what, "write {…} for a formula")
        return Response(
            self.left,
            self.expression(node),
            None if level is None else self.level(level),
            None if trials is None else self.expression(trials),
        )

    def level(self, node: ast.expr) -> str:
        """Return the level in y[level], which may be quoted."""
        return node.id if isinstance(node, ast.Name) else str(self.argument(node))

    def terms(self, node: ast.expr, top: bool = False) -> list[Term | None]:
        """Expand a sum of terms; None removes the intercept. Only the `top` has (… | …)."""
        match node:
            case ast.BinOp(left, ast.Add(), right):
                return [*self.terms(left, top), *self.terms(right, top)]
            case ast.BinOp(left, ast.Sub(), right):
                removed = self.terms(right)
                names = {frozenset(term) for term in removed if term}
                kept = [t for t in self.terms(left, top) if t is None or frozenset(t) not in names]
                return [*kept, *(None if term == () else () for term in removed if not term)]
            case ast.BinOp(left, ast.Mult(), right):
                first, second = self.terms(left), self.terms(right)
                return [*first, *second, *self.interactions(first, second)]
            case ast.BinOp(left, ast.Div(), right):
                first = self.terms(left)
                outer = tuple(dict.fromkeys(part for term in first for part in term or ()))
                return [*first, *self.interactions([outer], self.terms(right))]
            case ast.BinOp(left, ast.Pow(), ast.BinOp(ast.Name("_"), ast.Pow(), right)):
                return self.interactions(self.terms(left), self.terms(right))
            case ast.BinOp(
                left, ast.Pow(), ast.BinOp(power, ast.Pow(), ast.BinOp(ast.Name("_"), _, right))
            ):
                return self.interactions(self.powers(left, power), self.terms(right))
            case ast.BinOp(left, ast.Pow(), right):
                return self.powers(left, right)
            case ast.BinOp(ast.BinOp(left, ast.BitOr(), ast.Name("_")), ast.BitOr(), right) if top:
                self.random.append(self.random_term(left, right, correlated=False))
                return []
            case ast.BinOp(left, ast.BitOr(), right) if top:
                self.random.append(self.random_term(left, right))
                return []
            case ast.BinOp(op=ast.BitOr()):
                what = "a term (… | g) cannot be part of another term"
                raise self.misread(what, "add it with +")
            case ast.Call(ast.Name("offset"), [argument], []) if top:
                self.offsets.append(self.expression(argument))
                return []
            case ast.Constant(int(value)) if repr(value) in ("0", "1"):
                return [() if value else None]
            case ast.UnaryOp(ast.USub(), ast.Constant(int(value))) if repr(value) in ("0", "1"):
                return [None if value else ()]
            case ast.Constant(value=value):
                what = f"the only numbers allowed as terms are 0 and 1, got {value!r}"
                raise self.misread(what, "add a constant by offset(…)")
            case ast.Name() | ast.Subscript() | ast.Call() | ast.Set():
                return [(self.component(node),)]
        remedy = "write {…} for arithmetic, as in {x ** 2} or {-x}"
        raise self.misread(f"{self.written(node)!r} is not a term", remedy)

    def powers(self, base: ast.expr, exponent: ast.expr) -> list[Term | None]:
        """Expand (a + b + …) ** n, all interactions of up to n terms."""
        text = f"{self.written(base)} ** {self.written(exponent)}"
        if not isinstance(base, ast.BinOp):
            raise self.misread(f"{text} is arithmetic", f"write {{{text}}}")
        count = getattr(exponent, "value", None)
        if type(count) is not int or count < 1:
            what = f"the exponent of a bracket is a number ≥ 1, got {self.written(exponent)}"
            raise self.misread(what, "write for example (a + b) ** 2")
        found = terms = self.terms(base)
        for size in range(2, min(count, len(terms)) + 1):
            for chosen in combinations(terms, size):
                joined: list[Term | None] = [()]
                for term in chosen:
                    joined = self.interactions(joined, [term])
                found = [*found, *joined]
        return found

    def interactions(
        self, first: Sequence[Term | None], second: Sequence[Term | None]
    ) -> list[Term | None]:
        """Return the product of each term with each of the others."""
        found: list[Term | None] = []
        for left, right in product(first, second):
            if left is None or right is None:
                raise self.misread("0 cannot be part of a product", "write 0 + …")
            found.append(tuple(dict.fromkeys((*left, *right))))
        return found

    def random_term(self, left: ast.expr, right: ast.expr, correlated: bool = True) -> RandomTerm:
        """Return (left | right); as in the fixed effects, 1 is implied unless 0 removes it."""
        terms, factors = _distinct([(), *self.terms(left)]), _distinct(self.terms(right))
        if not terms:
            raise self.misread("a term (… | g) has no effects", "write (1 | g)")
        if not factors:
            raise self.misread("a term (… | g) has no grouping factor", "write (1 | g)")
        for factor in factors:
            if not factor or any(part.column is None or part.contrast for part in factor):
                got = ":".join(part.name for part in factor) or "1"
                what = f"a grouping factor is a column or columns joined by : or /, got {got}"
                raise self.misread(what, "compute it as a column first")
        columns = tuple(tuple(str(c.column) for c in factor) for factor in factors)
        return RandomTerm(terms, columns, correlated)

    def component(self, node: ast.expr) -> Component:
        """Return a term of its own."""
        match node:
            case ast.Call(ast.Name("C" | "S" | "T"), [ast.Name() as column, *rest]):
                call = ast.copy_location(ast.Call(node.func, rest, node.keywords), node)
                name, code, contrast = self.written(node), ast.unparse(node), self.argument(call)
                return replace(self.expression(column), name=name, code=code, contrast=contrast)
            case ast.Call(ast.Name("C" | "S" | "T" as function)):
                raise self.misread(f"{function}() takes the name of a column", "compute it first")
            case ast.Call(ast.Name(kind), [_, *_]) if kind in _BASES:
                return self.basis(node, kind)
        return self.expression(node, ("center", "scale", "standardize"))

    def basis(self, node: ast.Call, kind: str) -> Component:
        """Return poly(), bs() or ns(), which has several columns."""
        name, (inner, *given) = self.written(node), node.args
        try:
            options = {str(each.arg): _literal(each.value) for each in node.keywords}
            chosen = basis(kind, *map(_literal, given), **options)
        except (TypeError, ValueError) as error:
            what = f"{name} cannot be read: {reason(error)}"
            remedy = "write for example poly(x, 2), bs(x, df=5) or ns(x, knots=(1, 2))"
            raise self.misread(what, remedy) from None
        code, argument = ast.unparse(node), self.function(inner, ())

        def value(values: Values) -> Any:
            return values.basis(code, argument(values), chosen)

        return Component(name, code, frozenset(_columns(inner)), None, value, basis=chosen)

    def argument(self, node: ast.expr) -> Any:
        """Evaluate an argument of C(), S() or T(): a contrast, or a level."""
        try:
            match node:
                case ast.Name(name):
                    return _CONTRASTS[name]()
                case ast.Call(ast.Name(name), given, named):
                    options = {str(each.arg): self.argument(each.value) for each in named}
                    return _CONTRASTS[name](*map(self.argument, given), **options)
            level = ast.literal_eval(node)
            if isinstance(level, str | int | float | None):
                return level
            raise TypeError
        except (KeyError, TypeError, ValueError):
            what = f"{self.written(node)} is not a contrast or a level"
            raise self.misread(what, "write for example C(x, Sum) or T(x, ref='level')") from None

    def expression(self, node: ast.expr, stateful: tuple[str, ...] = ()) -> Component:
        """Return an expression of columns, numbers and functions whose names are known."""
        name = self.written(node)
        match node:
            case ast.Set([inner]) | ast.Call(ast.Name("I"), [inner], []):
                return replace(self.expression(inner, stateful), name=name)
        value, columns = self.function(node, stateful), frozenset(_columns(node))
        column = next(iter(columns)) if isinstance(node, ast.Name) else None
        return Component(name, ast.unparse(node), columns, column, value)

    def function(self, node: ast.expr, stateful: tuple[str, ...]) -> Callable[[Values], Any]:
        """Return the function that evaluates an expression; it must mean the same for new data."""
        apply: Callable[..., Any]
        match node:
            case ast.Name(name) if name != "_":
                return lambda values: values.column(name.strip("`"))
            case ast.Constant(str(text)):
                return lambda values: text
            case ast.Constant(bool() | int() | float() as value):
                number = np.float64(value)
                return lambda values: number
            case ast.Set([inner]) | ast.Call(ast.Name("I"), [inner], []):
                return self.function(inner, stateful)
            case ast.Call(ast.Name(name), [inner], []) if name in stateful:
                call, argument = ast.unparse(node), self.function(inner, stateful)
                return lambda values: values.standardized(call, argument(values), name != "center")
            case ast.Call(ast.Name(name), [*inner], []) if name.removeprefix("np.") in _UFUNCS:
                apply = ufunc = _UFUNCS[name.removeprefix("np.")]
                if len(inner) != ufunc.nin:  # one more would be overwritten with the result
                    what = f"{name}() takes {ufunc.nin} columns, got {len(inner)}"
                    raise self.misread(what, "correct its arguments")
            case ast.BinOp(op=sign) | ast.UnaryOp(op=sign) | ast.Compare(ops=[sign]) if (
                type(sign) in _OPERATORS
            ):
                apply = _OPERATORS[type(sign)]
                inner = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            case ast.Call(ast.Name("offset")):
                raise self.misread("offset() can only be added", "write + offset(x)")
            case ast.Call(ast.Name(name)) if name in _BASES:
                what = f"{name}() has several columns and is a term of its own"
                raise self.misread(what, f"write {name}(x, 3)")
            case ast.Call(ast.Name(name)):
                known = ["I", *stateful, *_BASES]
                raise ValueError(
                    f"formula {self.text!r} calls {name}(), but functions in a formula must be "
                    f"elementwise (log, np.exp, …) or one of {', '.join(known)}; compute it as a "
                    f"column first{alike(name.removeprefix('np.'), [*_UFUNCS, *known])}"
                )
            case ast.Subscript(ast.Name(name), level):
                what = f"only the response can name a level, got {name}[…]"
                raise self.misread(what, f"write {{{name} == {self.level(level)!r}}}")
            case _:
                what = f"{self.written(node)} is not allowed in an expression"
                raise self.misread(what, "compute it as a column first")
        parts = [self.function(part, stateful) for part in inner]
        return lambda values: apply(*(part(values) for part in parts))

    def misread(self, what: str, remedy: str) -> ValueError:
        """Build the error for this formula."""
        return ValueError(f"formula {self.text!r}: {printable(what)}; {remedy}")

    def written(self, node: ast.expr) -> str:
        """Return a node as it is written in the formula, but {…} as I(…)."""
        source = ast.get_source_segment(self.source, node) or "…"
        text = " ".join(self._shown(source).split())
        if isinstance(node, ast.Name):
            return ":" if node.id == "_" else text.strip("`")
        return f"I({text[1:-1].strip()})" if isinstance(node, ast.Set) else text

    def _hide(self, match: re.Match[str]) -> str:
        token = match[0]
        if token[0].isdigit() or token[0] == "." or token in ("True", "False", "None"):
            return token
        self.hidden.append(token)
        place = f"_{len(self.hidden) - 1}_"
        return f"'{place}'" if token[0] in "'\"" else f" {place} "

    def _shown(self, source: str) -> str:
        """Put the hidden tokens back."""
        text = source.replace(_COLON, ":").replace(_BARS, "||")
        text = text.replace("'_", " _").replace("_'", "_ ")
        return _HIDDEN.sub(lambda match: self.hidden[int(match[1])], text).strip()

    def _reason(self, error: Exception) -> str:
        if not isinstance(error, SyntaxError) or error.lineno is None or error.offset is None:
            return reason(error)
        line = self.source.splitlines()[error.lineno - 1][error.offset - 1 :]
        near = self._shown(line.removeprefix("1 + "))[:20]
        what = error.msg.split(".")[0]
        return what if near.startswith("(") else f"{what} at {near!r}"


def _distinct(terms: Sequence[Term | None]) -> tuple[Term, ...]:
    """Return each term once, the intercept first; a:b is b:a."""
    found: dict[frozenset[Component], Term] = {}
    for term in terms:
        if term is None:
            found.pop(frozenset(), None)
        else:
            found.setdefault(frozenset(term), term)
    return tuple(sorted(found.values(), key=bool))


def _outermost(terms: Sequence[Term]) -> list[Term]:
    """Return the terms that are part of no other."""
    return [term for term in terms if not any(set(term) < set(other) for other in terms)]


def _literal(node: ast.expr) -> Any:
    """Return a number or a tuple of numbers."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError("after the column it takes only numbers") from None


def _source(term: Term) -> str:
    return ":".join(component.source for component in term) or "1"


def _quoted(column: str) -> str:
    return column if _PLAIN.fullmatch(column) else f"`{column}`"


def _columns(node: ast.AST) -> set[str]:
    """Return the names of the columns in an expression."""
    if isinstance(node, ast.Name):
        return {node.id.strip("`")}
    inner = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return set().union(*map(_columns, inner))


def alike(word: str, known: Iterable[str]) -> str:
    """Suggest known words that resemble an unknown one, as the end of a message."""
    close = get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def printable(text: str) -> str:
    """Return text whose control characters, which a terminal would obey, are escaped."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def reason(error: Exception) -> str:
    """Return the message of another package's error on one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
