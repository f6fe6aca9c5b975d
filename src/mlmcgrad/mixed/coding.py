"""How columns become numbers, such that new data are coded in the same way.

The coding of a term is a function of the formula, of the levels of its columns, and of the numbers
that center() and scale() keep. `formulae` makes it by looking at data; here it looks at a few rows
in which every level occurs (`_sample`). So a file needs to keep nothing but names and numbers, and
the data of a fit take the same path as new data.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pandas as pd
from formulae.categorical import ENCODINGS
from formulae.environment import Environment
from formulae.terms.terms import Model
from formulae.transforms import TRANSFORMS
from numpy.typing import NDArray

from mlmcgrad.mixed.columns import Column, check_finite
from mlmcgrad.mixed.formula import Lazy, Term
from mlmcgrad.mixed.syntax import ELEMENTWISE, reason

_NUMPY = SimpleNamespace(**ELEMENTWISE)
_ENVIRONMENT = Environment([{**ELEMENTWISE, **TRANSFORMS, **ENCODINGS, "np": _NUMPY}])


@final
class Coder:
    """Columns of a few terms.

    Args:
        text: the formula, for messages.
        terms: from `formula.parse`.
        columns: of the data.
        kept: where center() and scale() get their numbers: the data of the fit, or an iterator
            over the numbers themselves, as `kept` gives them.
    """

    def __init__(
        self,
        text: str,
        terms: tuple[Term, ...],
        columns: Mapping[str, Column],
        kept: pd.DataFrame | Iterator[tuple[float, ...]],
    ) -> None:
        # Terms of one formula share parts, and formulae writes the coding into these.
        terms = tuple(deepcopy(term) for term in terms)
        with _said(text):
            self.kept = tuple(_keep(call, kept) for term in terms for call in _keeping(term))
            model = Model(*terms)
            model.eval(_sample(columns), _ENVIRONMENT)
        self._text = text
        self._terms = tuple(model.common_terms)
        self.names = tuple(str(label) for term in self._terms for label in term.labels)
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(
                    f"formula {text!r} has two columns called {name!r}; compute one of them as a "
                    "column with another name first"
                )

    def __call__(self, data: pd.DataFrame) -> NDArray[np.float64]:
        """The columns, (rows, names), of data that `columns.coerce` has seen."""
        result = np.empty((len(data), len(self.names)))
        start = 0
        with _said(self._text):
            for term in self._terms:
                values = np.asarray(term.eval_new_data(data))
                stop = start + (values.shape[1] if values.ndim == 2 else 1)
                result[:, start:stop] = values.reshape(len(data), -1)
                start = stop
        for name, column in zip(self.names, result.T, strict=True):
            check_finite(column, f"{name!r} in the formula {self._text!r}")
        return result


def evaluate(text: str, expression: Lazy, data: pd.DataFrame) -> pd.Series[Any]:
    """The value of an expression that is no term, such as the response or an offset, (rows,)."""
    with _said(text):
        value = expression.eval(data, _ENVIRONMENT)
        return pd.Series(value, index=data.index)


def _sample(columns: Mapping[str, Column]) -> pd.DataFrame:
    """A frame with the columns in which every level occurs; other numbers are 1."""
    rows = max([1, *(len(column.levels) for column in columns.values())])
    data = {}
    for name, column in columns.items():
        levels = column.levels or (1.0,)
        kind = None if column.number else pd.CategoricalDtype(list(levels), ordered=True)
        data[name] = pd.Series([levels[i % len(levels)] for i in range(rows)], dtype=kind)
    return pd.DataFrame(data, index=range(rows))


def _keeping(term: Term) -> Iterator[Any]:
    """The calls of center() and scale() in a term, inner ones first."""
    for component in getattr(term, "components", ()):
        if hasattr(component, "call"):
            yield from _inner(component.call)


def _inner(expression: Lazy) -> Iterator[Any]:
    for argument in getattr(expression, "args", ()):
        yield from _inner(argument)
    made = TRANSFORMS.get(getattr(expression, "callee", None))
    if getattr(made, "__stateful_transform__", False):
        yield expression


def _keep(call: Any, kept: pd.DataFrame | Iterator[tuple[float, ...]]) -> tuple[float, ...]:
    """Give a call of center() or scale() its numbers, once and for all."""
    if isinstance(kept, pd.DataFrame):
        call.eval(kept, _ENVIRONMENT)
        mean, spread = (getattr(call.stateful_transform, n, None) for n in ("mean", "std"))
        return tuple(float(number) for number in (mean, spread) if number is not None)
    numbers = next(kept)
    transform = TRANSFORMS[call.callee]()
    transform.mean, transform.params_set = numbers[0], True
    if len(numbers) > 1:
        transform.std = numbers[1]
    call.stateful_transform = transform
    return numbers


@contextmanager
def _said(text: str) -> Iterator[None]:
    """Errors of formulae and pandas as one sentence; formulae also prints, NumPy warns."""
    try:
        with redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            yield
    except Exception as error:
        raise ValueError(
            f"formula {text!r} cannot be evaluated: {reason(error)}; check what its functions are "
            "given"
        ) from None
