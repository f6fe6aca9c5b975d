"""The small changes of a module, each of which a test should notice.

A change replaces one node of the syntax tree: an operator or a comparison by its neighbour, a
number by another, min by max; arguments are swapped, keywords and statements left out, conditions
turned round. Annotations, decorators, strings and what an error says stay as they are.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

_OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_PAIRS = (
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("any", "all"),
    ("floor", "ceil"),
    ("mean", "sum"),
    ("cumsum", "cumprod"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("new_zeros", "new_ones"),
)
_NAMES = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
# In which order two arguments come makes no difference here; nor do these keywords on one machine.
_SYMMETRIC = ("min", "max", "minimum", "maximum", "hypot", "isclose")
_MUTE = ("device", "strict", "encoding")
_UNTOUCHED = ("annotation", "returns", "decorator_list", "exc", "cause", "msg")
_SIMPLE = (ast.Constant, ast.Name, ast.UnaryOp)
_SHORT = ast.expr | ast.keyword | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return


@dataclass(frozen=True)
class Change:
    """One change: in which function or class ("" outside), and the text before and after."""

    where: str
    text: str
    function: bool  # it is in a function, so that only who calls that can notice

    @property
    def name(self) -> str:
        """How the change is named, whatever else moves in the module."""
        return f"{self.where}: {self.text}"


def changes(source: str) -> list[Change]:
    """All changes of a module, in the order of its text."""
    found = [change for change, _ in _numbered(source)]
    seen: Counter[Change] = Counter()
    named = []
    for change in found:
        seen[change] += 1
        again = f" (number {seen[change]})" if seen[change] > 1 else ""
        named.append(replace(change, text=change.text + again))
    return named


def changed(source: str, number: int) -> ast.Module:
    """The syntax tree of a module with one of its changes."""
    _, tree = next(islice(_numbered(source), number, None))
    return ast.fix_missing_locations(tree)


def speaking(source: str, call: str, path: str) -> ast.Module:
    """The syntax tree of a module in which each function begins with `call("path function")`."""
    tree = ast.parse(source)
    _speak(tree, call, path, ())
    return ast.fix_missing_locations(tree)


def _speak(node: ast.AST, call: str, path: str, where: tuple[str, ...]) -> None:
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inside = (*where, child.name)
        _speak(child, call, path, inside)
        if isinstance(child, ast.FunctionDef):
            said = ast.Constant(f"{path} {'.'.join(inside)}")
            line = ast.Expr(ast.Call(ast.Name(call, ast.Load()), [said], []))
            child.body.insert(int(ast.get_docstring(child) is not None), line)


def _numbered(source: str) -> Iterator[tuple[Change, ast.Module]]:
    """Each change, and the tree, which has it until the next one is asked for."""
    tree = ast.parse(source)
    for change in _visit(tree, ()):
        yield change, tree


def _visit(node: ast.AST, where: tuple[str, ...], function: bool = False) -> Iterator[Change]:
    for field, value in ast.iter_fields(node):
        if field in _UNTOUCHED or _is_name_list(node):
            continue
        several = isinstance(value, list)
        for i, child in enumerate(value if several else [value]):
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or _mute(child):
                continue
            for other in _alternatives(child, node, field):
                shown = isinstance(child, _SIMPLE) and isinstance(node, _SHORT)
                before = _default(node, field, i) + _text(node if shown else child)
                _put(node, field, i if several else None, other)
                after = _text(node if shown else other)
                text = _left_out(child, other) or f"{before} → {after}"
                yield Change(".".join(where), text, function)
                _put(node, field, i if several else None, child)
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = isinstance(child, ast.FunctionDef)
                yield from _visit(child, (*where, child.name), inner)
            else:
                yield from _visit(child, where, function)


def _alternatives(node: ast.AST, above: ast.AST, field: str) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    condition = isinstance(above, ast.If | ast.While) and field == "test"
    if condition and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr):
        yield ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            # A tolerance is left out: twice as large it would do as well.
            yield ast.Constant(0.0 if 0.0 < value < 1e-5 else 2.0 * value or 1.0)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            if not (_is_text(left) or _is_text(right)):
                yield ast.BinOp(left, _OPERATORS[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(_OPERATORS[type(op)](), values)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for i, sign in enumerate(ops):
                others = [*ops[:i], _OPERATORS[type(sign)](), *ops[i + 1 :]]
                yield ast.Compare(left, others, comparators)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.comprehension(target=target, iter=items, ifs=[_, *_], is_async=asynchronous):
            yield ast.comprehension(target, items, [], asynchronous)
        case ast.Call():
            yield from _calls(node)
        case ast.AugAssign(target=target, op=op, value=value):
            yield ast.Pass()
            if type(op) in _OPERATORS:
                yield ast.AugAssign(target, _OPERATORS[type(op)](), value)
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Return(value=ast.expr() as value) if _text(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _calls(call: ast.Call) -> Iterator[ast.Call]:
    name = _text(call.func).split(".")[-1]
    match call.func:
        case ast.Name() if name in _NAMES:
            yield ast.Call(ast.Name(_NAMES[name], ast.Load()), call.args, call.keywords)
        case ast.Attribute(value=value) if name in _NAMES:
            other = ast.Attribute(value, _NAMES[name], ast.Load())
            yield ast.Call(other, call.args, call.keywords)
    match call.args:
        case [first, second, *rest] if name not in _SYMMETRIC and _text(first) != _text(second):
            if not any(isinstance(argument, ast.Starred) for argument in (first, second)):
                yield ast.Call(call.func, [second, first, *rest], call.keywords)
    for keyword in call.keywords:
        if keyword.arg is not None and not _mute(keyword):
            others = [other for other in call.keywords if other is not keyword]
            yield ast.Call(call.func, call.args, others)


def _left_out(before: ast.AST, after: ast.AST) -> str:
    """What a call lost, without the rest of it: `MLMC(…, base=base) → MLMC(…)`."""
    if isinstance(before, ast.Call) and isinstance(after, ast.Call):
        for keyword in before.keywords:
            if keyword not in after.keywords:
                name = _text(before.func)
                return f"{name}(…, {_text(keyword)}) → {name}(…)"
    return ""


def _default(node: ast.AST, field: str, index: int) -> str:
    """The argument that a default value belongs to: `base=`."""
    if not isinstance(node, ast.arguments):
        return ""
    plain = [*node.posonlyargs, *node.args]
    names = plain[len(plain) - len(node.defaults) :] if field == "defaults" else node.kwonlyargs
    return f"{names[index].arg}="


def _put(node: ast.AST, field: str, index: int | None, child: ast.AST) -> None:
    if index is None:
        setattr(node, field, child)
    else:
        getattr(node, field)[index] = child


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


def _mute(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg in _MUTE


def _is_text(node: ast.AST) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, ast.JoinedStr)


def _is_name_list(node: ast.AST) -> bool:
    """`__all__ = [...]`."""
    return isinstance(node, ast.Assign) and _text(node.targets[0]) == "__all__"
