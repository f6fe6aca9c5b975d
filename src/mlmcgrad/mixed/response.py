"""The response of a model as numbers, with its trials.

Numbers stay as they are. A response with two levels (text, booleans) becomes 1{y = success}, where
success is the level that the formula names, y['yes'] ~ …, and otherwise the last one, as in R.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from mlmcgrad.mixed.coding import evaluate
from mlmcgrad.mixed.columns import check_finite, coerce, describe
from mlmcgrad.mixed.formula import Formula
from mlmcgrad.mixed.syntax import alike


def response(
    formula: Formula, data: pd.DataFrame
) -> tuple[NDArray[np.float64], NDArray[np.float64], str | None]:
    """Evaluate the left side of a formula.

    Args:
        formula: what to evaluate.
        data: its columns, without missing values.

    Returns:
        y and the numbers of trials, (rows,) each, and the level that counts as 1, if y has levels.
    """
    side = formula.response
    values = evaluate(formula.text, side.value, _coerced(data, side.columns))
    y, success = _binary(values, side.text, side.level)
    check_finite(y, f"the response {side.text!r}")
    return y, trials(formula, data), success


def trials(formula: Formula, data: pd.DataFrame) -> NDArray[np.float64]:
    """The numbers of trials, (rows,): 1 if the formula has none."""
    side = formula.response
    if side.trials is None:
        return np.ones(len(data))
    values = evaluate(formula.text, side.trials, _coerced(data, side.trial_columns))
    if not types.is_numeric_dtype(values):
        raise ValueError(f"the trials in {side.text!r} must be numbers, got {values.iloc[0]!r}")
    numbers = values.to_numpy(np.float64)
    check_finite(numbers, f"the trials in {side.text!r}")
    return numbers


def _coerced(data: pd.DataFrame, names: frozenset[str]) -> pd.DataFrame:
    columns = {}
    for name in names:
        values = data[name].infer_objects()
        if types.is_bool_dtype(values):
            values = values.map({False: "False", True: "True"})
        columns[name] = coerce(values, describe(values, coded=False))
    return pd.DataFrame(columns, index=data.index)


def _binary(
    values: pd.Series[Any], text: str, level: str | None
) -> tuple[NDArray[np.float64], str | None]:
    if types.is_bool_dtype(values):
        values = values.map({False: "False", True: "True"})
    elif types.is_numeric_dtype(values) and level is None:
        return values.to_numpy(np.float64), None
    levels = [str(found) for found in describe(values, coded=True).levels]
    if level is None and len(levels) > 2:
        raise ValueError(
            f"the response {text!r} must be numbers or have two levels, got {len(levels)} levels "
            f"such as {levels[0]!r}; name the one that counts as 1: {text}['{levels[0]}'] ~ …"
        )
    if len(levels) == 1:
        raise ValueError(f"the response {text!r} is {levels[0]!r} in all rows; it must vary")
    success = levels[-1] if level is None else level
    if success not in levels:
        raise ValueError(
            f"the response {text!r} never is {success!r}, only {', '.join(map(repr, levels[:5]))}"
            f"{alike(success, levels)}"
        )
    return np.asarray(values.astype(str) == success, np.float64), success
