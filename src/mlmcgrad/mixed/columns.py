"""Columns of the data: their types and levels, the groups they define, and their coding as numbers.

A column of numbers (or of booleans, as 0 and 1) is used as it is. Any other column has levels:
those that occur, in the order of a pandas categorical, otherwise sorted. The first level is the
reference of the default contrasts. The groups of a:b are the combinations that occur.

A term is coded without redundancy: a level is left out where terms of lower order span it, as in R
and patsy. The coding depends on the formula, the levels of the columns, and the numbers stored by
center(), scale(), poly(), bs() and ns(), and on nothing else. New data are therefore coded exactly
like the data used in the fit, and a file needs to store only names and numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from mlmcgrad.mixed.bases import Basis
from mlmcgrad.mixed.formula import Component, Contrast, Term, alike, reason

Data: TypeAlias = pd.DataFrame | Mapping[str, Any] | str | Path
Level: TypeAlias = str | int | float

_SHOWN = 5  # values in a message

# Components, and whether all levels of each have a column.
_Space: TypeAlias = frozenset[tuple[Component, bool]]


@final
@dataclass(frozen=True)
class Column:
    """The type of a column, as needed to code new data in the same way."""

    number: bool  # whether the values are used as they are
    levels: tuple[Level, ...] = ()  # in order; numbers only have them inside C(), S() or T()


def frame(data: Data) -> pd.DataFrame:
    """Return the data as a frame.

    Args:
        data: a pandas frame, a dict of columns of equal length, or the path of a file: Parquet if
            its name ends in .parquet, otherwise CSV, which may be compressed (.csv.gz).
    """
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, (str, Path)):
        if not Path(data).is_file():
            raise FileNotFoundError(
                f"data: there is no file {str(data)!r}; give the path of a CSV or Parquet file"
            )
    elif not isinstance(data, Mapping):
        raise ValueError(
            f"data must be a pandas DataFrame, a dict of columns or the path of a CSV or Parquet "
            f"file, got {type(data).__name__}"
        )
    try:
        if isinstance(data, Mapping):
            return pd.DataFrame(data)
        return (pd.read_parquet if Path(data).suffix == ".parquet" else pd.read_csv)(data)
    except ImportError:  # of an engine for Parquet files, which pandas names
        raise
    except Exception as error:
        source = "the dict" if isinstance(data, Mapping) else f"the file {str(data)!r}"
        raise ValueError(f"data: {source} is not a table: {reason(error)}") from None


def select(data: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Return the columns with these names; each must exist once."""
    names = sorted(names)
    for name in names:
        if name == "Intercept":
            raise ValueError("'Intercept' is reserved for the intercept; rename this column")
        count = int((data.columns == name).sum())
        if count == 0:
            known = [str(column) for column in data.columns]
            raise ValueError(
                f"data has no column {name!r}, only {_listed(known)}{alike(name, known)}"
            )
        if count > 1:
            raise ValueError(f"data has {count} columns called {name!r}; rename all but one")
    return data[names]


def describe(values: pd.Series[Any], coded: bool) -> Column:
    """Return the type of a column without missing values, `coded` inside C(), S() or T()."""
    if _is_number(values):
        return Column(True, tuple(np.unique(_numbers(values)).tolist()) if coded else ())
    values = _plain(values)
    if isinstance(values.dtype, pd.CategoricalDtype):
        return Column(False, tuple(values.cat.remove_unused_categories().cat.categories.tolist()))
    levels = _distinct(values)
    for level in levels:
        if not isinstance(level, str):
            raise _strange(values, level)
    return Column(False, tuple(sorted(levels)))


def coerce(values: pd.Series[Any], column: Column) -> pd.Series[Any]:
    """Convert a column without missing values to its type: numbers, or a categorical."""
    if column.number:
        if not _is_number(values):
            raise ValueError(
                f"column {values.name!r} must hold numbers as in the data of the fit, "
                f"got {values.iloc[0]!r}"
            )
        numbers = _numbers(values)
        check_finite(numbers, f"column {values.name!r}")
        values = pd.Series(numbers, index=values.index, name=values.name)
    values = _plain(values)
    if column.levels:
        known = set(column.levels)
        unknown = [level for level in _distinct(values) if level not in known]
        if unknown:
            raise ValueError(
                f"column {values.name!r} has the level {unknown[0]!r}, which does not occur in "
                f"the data of the fit, only {_listed(column.levels)}; leave out these rows"
            )
    if column.number:
        return values
    return values.astype(pd.CategoricalDtype(list(column.levels)))


def groups(data: pd.DataFrame, names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the labels of the groups of a factor, and the group of each row, (rows,).

    The groups are the combinations of the columns `names`. A row with a missing value has the
    index −1, no group.
    """
    try:
        grouped = data.groupby(list(names), observed=True)
        keys = grouped.size().index
        index = np.array(grouped.ngroup().fillna(-1), np.int64)
    except TypeError:
        raise _strange(data[names[0]], data[names[0]].iloc[0]) from None
    rows = keys if isinstance(keys, pd.MultiIndex) else [(key,) for key in keys]
    labels = tuple(":".join(map(_label, row)) for row in rows)
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"different groups of {':'.join(names)!r} have the same label; rename their levels"
        )
    return labels, index


def check_finite(values: NDArray[Any], what: str) -> None:
    """Raise if a value is infinite or NaN, and name the first."""
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(
            f"{what} must be finite, got {float(values[row])} in row {row} (counted from 0, "
            "without rows that have missing values); correct it or leave out the row"
        )


@final
class Values:
    """The data, converted by `coerce`, on which the expressions of a formula are evaluated.

    `kept` has the numbers of each center(), scale(), poly(), bs() and ns(); those that are missing
    are computed from the data.
    """

    def __init__(
        self, text: str, data: pd.DataFrame, kept: Mapping[str, tuple[float, ...]] | None = None
    ) -> None:
        self.text, self.data, self.kept = text, data, dict(kept or {})

    def evaluate(self, component: Component) -> pd.Series[Any]:
        """Return the values of an expression, (rows,)."""
        if component.column is not None:
            return self.data[component.column]
        with _plain_errors(self.text):
            return pd.Series(component.value(self), index=self.data.index)

    def coded(self, component: Component, contrast: pd.DataFrame) -> NDArray[np.float64]:
        """Return the columns of a component, (rows, columns); numbers have an empty contrast."""
        if not contrast.empty:
            codes = contrast.index.get_indexer(pd.Index(self.data[component.column]))
            return contrast.to_numpy()[codes]
        if component.basis is not None:
            with _plain_errors(self.text):
                return np.asarray(component.value(self))
        values = self.evaluate(component)
        with _plain_errors(self.text):
            return values.to_numpy(np.float64)[:, None]

    def column(self, name: str) -> pd.Series[Any]:
        """Return a column; whole numbers as floats, which do not overflow."""
        values = self.data[name]
        return values.astype(np.float64) if types.is_numeric_dtype(values) else values

    def standardized(self, call: str, values: pd.Series[Any], scaled: bool) -> pd.Series[Any]:
        """Return the value of center() or scale()."""
        if call not in self.kept:
            mean, spread = float(values.mean()), float(values.std(ddof=0))
            self.kept[call] = (mean, spread) if scaled else (mean,)
        mean, *spreads = self.kept[call]
        return (values - mean) / spreads[0] if scaled else values - mean

    def basis(self, call: str, values: pd.Series[Any], basis: Basis) -> NDArray[np.float64]:
        """Return the columns of poly(), bs() or ns(), (rows, columns)."""
        if not types.is_numeric_dtype(values):
            raise ValueError(f"{call} must be a function of numbers, got {values.iloc[0]!r}")
        x = np.asarray(values, np.float64)
        if call not in self.kept:
            self.kept[call] = basis.numbers(x)
        return basis.columns(x, self.kept[call])


@final
class Coder:
    """Code some terms of a formula as columns of numbers, called `names`."""

    def __init__(self, text: str, terms: tuple[Term, ...], columns: Mapping[str, Column]) -> None:
        levels = {c: _levels(c, columns) for term in terms for c in term}
        self._text = text
        self._blocks = [
            [(component, _coding(component, levels[component], full)) for component, full in block]
            for block in _blocks(terms, {c for c, known in levels.items() if known})
        ]
        self.names = tuple(
            ":".join(labels) or "Intercept"
            for block in self._blocks
            for labels in product(*(map(str, contrast) for _, contrast in block))
        )
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(
                    f"formula {text!r} has two columns called {name!r}; compute one of them "
                    "first, as a column with another name"
                )

    def __call__(self, values: Values) -> NDArray[np.float64]:
        """Return the columns, (rows, names)."""
        rows, blocks = len(values.data), []
        for block in self._blocks:
            columns = np.ones((rows, 1))
            for component, contrast in block:
                own = values.coded(component, contrast)
                columns = (columns[:, :, None] * own[:, None, :]).reshape(rows, -1)
            blocks.append(columns)
        result = np.concatenate(blocks, 1)
        for name, column in zip(self.names, result.T, strict=True):
            check_finite(column, f"{name!r} in the formula {self._text!r}")
        return result


def _levels(component: Component, columns: Mapping[str, Column]) -> tuple[Level, ...]:
    """Return the levels of a component, () for numbers."""
    if component.column is None:
        return ()
    column = columns[component.column]
    return column.levels if component.contrast or not column.number else ()


def _blocks(terms: tuple[Term, ...], coded: set[Component]) -> list[list[tuple[Component, bool]]]:
    """Choose the components of each block of columns, and whether all their levels have one.

    A term spans the products of all subsets of its components without their reference levels. Those
    that other terms span are left out. Two of them that differ by one component are one product
    with all its levels.
    """
    spanned = defaultdict[frozenset[Component], set[frozenset[Component]]](set)
    chosen = {}
    for term in sorted(terms, key=lambda term: len(coded.intersection(term))):
        own = [component for component in term if component in coded]
        known = spanned[frozenset(term) - coded]  # by terms with the same numbers
        subsets = [frozenset(s) for size in range(len(own) + 1) for s in combinations(own, size)]
        spaces = [
            frozenset((c, False) for c in subset) for subset in subsets if subset not in known
        ]
        known.update(subsets)
        while pair := next(filter(_mergeable, combinations(spaces, 2)), None):
            small, large = pair
            ((component, _),) = large - small
            spaces[spaces.index(large)] = small | {(component, True)}
            spaces.remove(small)
        chosen[term] = [
            [(c, (c, True) in space) for c in term if c not in coded or c in dict(space)]
            for space in spaces
        ]
    return [block for term in terms for block in chosen[term]]


def _mergeable(pair: tuple[_Space, _Space]) -> bool:
    small, large = pair
    return small < large and len(large) == len(small) + 1


def _coding(component: Component, levels: tuple[Level, ...], full: bool) -> pd.DataFrame:
    """Return the contrast matrix with the names of its columns, (levels, columns)."""
    name, contrast = component.name, component.contrast or Contrast("Treatment")
    if component.basis is not None:
        return pd.DataFrame(columns=[f"{name}[{i + 1}]" for i in range(component.basis.size)])
    if not levels:
        return pd.DataFrame(columns=[name])
    if contrast.kind in ("Poly", "Helmert"):
        labels = [f"{name}[{i}]" for i in range(1, len(levels))]
        matrix = pd.DataFrame(_CONTRASTS[contrast.kind](len(levels)), levels, labels)
        if full:
            matrix.insert(0, f"{name}[mean]", 1.0)
        return matrix
    omitted = contrast.level
    if omitted is None:
        omitted = levels[0 if contrast.kind == "Treatment" else -1]
    elif omitted not in levels:
        raise ValueError(
            f"{name!r} names the level {omitted!r}, but the column has only {_listed(levels)}; "
            "correct it"
        )
    matrix = pd.DataFrame(np.eye(len(levels)), levels, [f"{name}[{level}]" for level in levels])
    if contrast.kind == "Sum" or not full:
        matrix = matrix.drop(columns=f"{name}[{omitted}]")
    if contrast.kind == "Sum":
        matrix.loc[omitted] = -1.0
        if full:
            matrix.insert(0, f"{name}[mean]", 1.0)
    return matrix


def _polynomials(count: int) -> NDArray[np.float64]:
    """Return orthonormal polynomials of the numbers of the levels, as R's contr.poly."""
    numbers = np.arange(count, dtype=np.float64)
    chosen = Basis("poly", count - 1, count - 1)
    return chosen.columns(numbers, chosen.numbers(numbers))


def _helmert(count: int) -> NDArray[np.float64]:
    """Return each level against the mean of those before it, as R's contr.helmert."""
    matrix = np.triu(-np.ones((count, count - 1)))
    matrix[np.arange(1, count), np.arange(count - 1)] = np.arange(1, count)
    return matrix


_CONTRASTS = {"Poly": _polynomials, "Helmert": _helmert}


def _plain(values: pd.Series[Any]) -> pd.Series[Any]:
    """Convert levels such as intervals or dates to text, which a file can store."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        levels = values.cat.categories.tolist()
        if not all(isinstance(level, (str, int, float)) for level in levels):
            return values.cat.rename_categories([str(level) for level in levels])
    return values


def _is_number(values: pd.Series[Any]) -> bool:
    return types.is_numeric_dtype(values.infer_objects()) and not types.is_complex_dtype(values)


def _numbers(values: pd.Series[Any]) -> NDArray[Any]:
    values = values.infer_objects()
    whole = types.is_integer_dtype(values) or types.is_bool_dtype(values)
    return values.to_numpy(np.int64 if whole else np.float64)


def _distinct(values: pd.Series[Any]) -> list[Any]:
    try:
        return pd.unique(values).tolist()
    except TypeError:
        raise _strange(values, values.iloc[0]) from None


def _strange(values: pd.Series[Any], value: Any) -> ValueError:
    return ValueError(
        f"column {values.name!r} has values that are neither numbers nor text, such as {value!r} "
        f"({type(value).__name__}); convert it to one of them"
    )


def _label(value: Any) -> str:
    # A missing value elsewhere in the column turns whole numbers into floats.
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(repr(value) for value in values[:_SHOWN])
    return shown + (f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else "")


@contextmanager
def _plain_errors(text: str) -> Iterator[None]:
    """Turn errors of NumPy and pandas into one sentence, and silence warnings."""
    try:
        with np.errstate(all="ignore"):
            yield
    except Exception as error:
        raise ValueError(
            f"formula {text!r} cannot be evaluated: {reason(error)}; check the arguments "
            "of its functions"
        ) from None
