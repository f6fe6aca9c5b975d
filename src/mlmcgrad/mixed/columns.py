"""Columns of the data: where they come from, numbers and levels, missing values, groups.

A column of numbers (or of booleans, as 0 and 1) is used as it is. Any other column has levels:
those that occur, in the order of a pandas categorical, otherwise sorted. The first one is the
reference of the usual contrasts. Groups have labels; those of a:b are the combinations that occur.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from mlmcgrad.mixed.syntax import alike, reason

Data: TypeAlias = pd.DataFrame | Mapping[str, Any] | str | Path
Level: TypeAlias = str | int | float

_SHOWN = 5


@final
@dataclass(frozen=True)
class Column:
    """What must be known of a column to code new data in the same way.

    Args:
        number: whether it is used as it is.
        levels: in their order; of a number only if it stands in C(), S() or T().
    """

    number: bool
    levels: tuple[Level, ...] = ()


def frame(data: Data) -> pd.DataFrame:
    """Data as a frame.

    Args:
        data: a pandas frame, a dict of columns of equal length, or the path of a CSV file.
    """
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, (str, Path)):
        if not Path(data).is_file():
            raise FileNotFoundError(f"data: there is no file {str(data)!r}; give the path of a CSV")
    elif not isinstance(data, Mapping):
        raise ValueError(
            f"data must be a pandas DataFrame, a dict of columns or the path of a CSV file, "
            f"got {type(data).__name__}"
        )
    try:
        return pd.DataFrame(data) if isinstance(data, Mapping) else pd.read_csv(data)
    except Exception as error:
        source = "the dict" if isinstance(data, Mapping) else f"the file {str(data)!r}"
        raise ValueError(f"data: {source} is not a table: {reason(error)}") from None


def select(data: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """The columns with these names, each of which must be there once."""
    names = sorted(names)
    for name in names:
        if name == "Intercept":
            raise ValueError("'Intercept' is the name of the intercept; rename this column")
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
    """What a column without missing values is.

    Args:
        values: the column.
        coded: whether it stands in C(), S() or T().
    """
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
    """A column without missing values as its description says: numbers, or codes of its levels."""
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
                f"column {values.name!r} has the level {unknown[0]!r}, which the data of the fit "
                f"do not have, only {_listed(column.levels)}; leave out these rows"
            )
    if column.number:
        return values
    return values.astype(pd.CategoricalDtype(list(column.levels)))


def groups(data: pd.DataFrame, names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Groups of a factor.

    Args:
        data: rows; where a value is missing the row has no group.
        names: the columns whose combinations are the groups.

    Returns:
        Labels of the groups, and the group of each row, (rows,); −1 for none.
    """
    index = np.zeros(len(data), np.int64)
    missing = np.zeros(len(data), bool)
    labels = np.array([""], object)
    for name in names:
        codes, own = _factorise(data[name])
        if not own:
            return (), np.full(len(data), -1)
        missing |= codes < 0
        # Only combinations that occur are kept, so that the product stays small.
        pairs, index = np.unique(index * len(own) + codes, return_inverse=True)
        joined = [f"{labels[p // len(own)]}:{own[p % len(own)]}" for p in pairs]
        labels = np.array(joined, object)
    used, index = np.unique(np.where(missing, -1, index), return_inverse=True)
    if len(used) and used[0] < 0:
        used, index = used[1:], index - 1
    found = tuple(label.removeprefix(":") for label in labels[used])
    if len(set(found)) < len(found):
        raise ValueError(
            f"different groups of {':'.join(names)!r} have the same label; rename their levels"
        )
    return found, index.astype(np.int64)


def check_finite(values: NDArray[Any], what: str) -> None:
    """Refuse numbers that are infinite or not numbers, and name the first."""
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(
            f"{what} must be finite, got {float(values[row])} in row {row} (counted from 0, "
            "without rows that have missing values); correct it or leave out the row"
        )


def _plain(values: pd.Series[Any]) -> pd.Series[Any]:
    """Levels such as intervals or dates as text, which a file can keep."""
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


def _factorise(values: pd.Series[Any]) -> tuple[NDArray[np.int64], list[str]]:
    if isinstance(values.dtype, pd.CategoricalDtype):
        used = values.cat.remove_unused_categories()
        return np.asarray(used.cat.codes, np.int64), [_label(x) for x in used.cat.categories]
    try:
        codes, found = pd.factorize(values, sort=True)
    except TypeError:
        raise _strange(values, values.iloc[0]) from None
    return np.asarray(codes, np.int64), [_label(x) for x in found]


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
    # A missing value elsewhere in the column makes floats of whole numbers.
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


def _listed(values: Sequence[Any]) -> str:
    shown = ", ".join(repr(value) for value in values[:_SHOWN])
    return shown + (f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else "")
