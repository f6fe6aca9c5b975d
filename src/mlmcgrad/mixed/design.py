"""Turn a formula and data into tensors.

    η_i = o_i + x_iᵀβ + Σ_f z_{f,i}ᵀ b_{f, g_f(i)},      b_{f,g} ~ N(0, Σ_f) for each group g,

with fixed columns x (`fixed`), offset o, and for each grouping factor f the few columns z_f of a
row (`Effects.columns`) and the index of its group (`Effects.index`): memory is rows × columns,
never rows × groups. Σ_f is block diagonal, with one block for each (… | f) in the formula; for
(… || f) it is diagonal.

A numeric response is used as it is. A response with two levels (text, booleans) becomes
1{y = success}, where success is the level that the formula names, y['yes'] ~ …, and otherwise the
last one, as in R.

Effects must be identified. Columns must be linearly independent. Let a block with columns Z have
the free covariance V. An effect with variance s² and the column Z w in another block is
indistinguishable from V + s² w wᵀ: no column may be a combination of those of another block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api import types
from torch import Tensor

from mlmcgrad.mixed.columns import (
    Coder,
    Column,
    Data,
    Values,
    check_finite,
    coerce,
    describe,
    frame,
    groups,
    select,
)
from mlmcgrad.mixed.formula import Component, Formula, alike, parse

# Norm of a column's remainder, relative to the column, below which the others explain it.
_DEPENDENT = 1e-10
_MOST_LEVELS = 1000  # of a fixed effect, which is a dense matrix


@final
@dataclass(frozen=True)
class Effects:
    """The random effects of one grouping factor.

    The correlated blocks of terms are (2,) for (1 + x | g), (1, 1) for (1 | g) + (0 + x | g) and
    for (1 + x || g). New groups follow the groups in the data of the fit.
    """

    factor: str  # its name, "district" or "a:b"
    groups: tuple[str, ...]  # their labels
    index: Tensor  # group of each row, (rows,) int64; −1 for a row of new data that has none
    terms: tuple[str, ...]  # names of the columns: "Intercept", "urban[yes]", …
    columns: Tensor  # (rows, terms) float64
    blocks: tuple[int, ...]  # sizes of the correlated blocks of terms


@final
@dataclass(frozen=True)
class Design:
    """The data of a model as tensors.

    Args:
        response: the left-hand side of the formula.
        y: the response, (rows,) float64.
        trials: number of trials of each row, (rows,); 1 unless the formula has trials.
        offset: known part of the linear predictor, (rows,).
        fixed: columns of the fixed effects, (rows, names).
        names: "Intercept", "age", "urban[yes]", …
        effects: the random effects of each grouping factor.
        coding: how the columns were coded, for new data.
        data: the rows, in the columns of the formula.
        weights: prior weight of each row, (rows,); None means 1.
        dropped: number of rows left out because of missing values.
    """

    response: str
    y: Tensor
    trials: Tensor
    offset: Tensor
    fixed: Tensor
    names: tuple[str, ...]
    effects: tuple[Effects, ...]
    coding: Coding
    data: pd.DataFrame
    weights: Tensor | None = None
    dropped: int = 0


@final
@dataclass(frozen=True)
class Coding:
    """The information needed to code new data like the data of the fit.

    `kept` stores the numbers of each center(), scale(), poly(), bs() and ns().
    """

    formula: str
    success: str | None  # the level of the response that is coded as 1, if it has levels
    columns: Mapping[str, Column]
    kept: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # labels, by factor

    def design(self, data: Data) -> Design:
        """Return the design of new data, without a response: y is NaN.

        Unknown groups follow those of the fit; an unknown level, or a missing value in another
        column, is an error. Without a column of trials they are 1.
        """
        parsed, table = parse(self.formula), frame(data)
        rows = select(table, parsed.predictors | parsed.grouping).reset_index(drop=True)
        if rows.empty:
            raise ValueError("data has 0 rows; give one per prediction")
        for name in sorted(parsed.predictors):
            missing = rows[name].isna().to_numpy()
            if missing.any():
                raise ValueError(
                    f"column {name!r} has no value in row {int(missing.argmax())} (counted from "
                    "0); fill it in or leave out the row"
                )
        known = parsed.response.trial_columns
        counts = np.ones(len(rows))
        if known <= set(map(str, table.columns)):
            counts = _trials(parsed, select(table, known).reset_index(drop=True))
        return _assemble(parsed, rows, np.full(len(rows), np.nan), counts, self)


def build(formula: str, data: Data, weights: str | Sequence[float] | None = None) -> Design:
    """Evaluate a formula on data, without the rows that have missing values.

    Args:
        formula: for example "use ~ age + urban + (1 + urban | district)".
        data: a pandas frame, a dict of columns, or the path of a CSV or Parquet file.
        weights: prior weights of the rows, or the name of their column.

    Returns:
        Tensors, names, and the coding for new data.

    Example:
        >>> data = {"y": [0, 1, 1, 0], "x": [0.1, 0.2, 0.4, 0.3], "g": ["a", "a", "b", "b"]}
        >>> design = build("y ~ x + (1 | g)", data)
        >>> design.names, design.effects[0].index.tolist()
        (('Intercept', 'x'), [0, 0, 1, 1])
    """
    parsed = parse(formula)
    side = parsed.response
    used = side.value.columns | side.trial_columns | parsed.predictors | parsed.grouping
    whole = frame(data)
    table, prior = select(whole, used), _weights(whole, weights)
    complete = table.notna().all(axis=1).to_numpy() & ~np.isnan(prior)
    rows, prior = table[complete].reset_index(drop=True), prior[complete]
    if rows.empty:
        empty = [name for name in table if table[name].isna().all()]
        why = f"column {empty[0]!r} has no values" if len(table) and empty else "each has a gap"
        raise ValueError(f"data has {len(table)} rows, none without missing values: {why}")
    y, counts, success = _read_response(parsed, rows)
    columns = {n: describe(rows[n], n in parsed.coded) for n in sorted(parsed.predictors)}
    _check_levels(columns)
    design = _assemble(parsed, rows, y, counts, Coding(formula, success, columns))
    _check_fixed(design.fixed, design.names)
    for effects in design.effects:
        _check_effects(effects)
    return replace(
        design,
        weights=None if weights is None else torch.from_numpy(prior),
        dropped=len(table) - len(rows),
    )


def _weights(data: pd.DataFrame, weights: str | Sequence[float] | None) -> NDArray[np.float64]:
    """Return the prior weights, (rows,); NaN where one is missing."""
    if weights is None:
        return np.ones(len(data))
    values = select(data, [weights])[weights] if isinstance(weights, str) else weights
    what = f"the weights in {weights!r}" if isinstance(weights, str) else "weights"
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be numbers, got {next(iter(values))!r}") from None
    if found.shape != (len(data),):
        raise ValueError(f"{what} must have one number per row, {len(data)}, got {found.shape}")
    wrong = ~(np.isnan(found) | (np.isfinite(found) & (found > 0.0)))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{what} must be positive and finite, got {float(found[row])} in row {row} (counted "
            "from 0); leave out rows without weight"
        )
    return found


def _assemble(
    formula: Formula,
    rows: pd.DataFrame,
    y: NDArray[np.float64],
    trials: NDArray[np.float64],
    coding: Coding,
) -> Design:
    """Evaluate the right-hand side of a formula and combine it with the response.

    Any groups or stored values missing from the coding are taken from the rows. In new data
    grouping factors may have missing values.
    """
    coerced = {name: coerce(rows[name], column) for name, column in coding.columns.items()}
    values = Values(formula.text, pd.DataFrame(coerced, index=rows.index), coding.kept)
    fixed = Coder(formula.text, formula.fixed, coding.columns)
    matrix = torch.from_numpy(fixed(values))
    random = [Coder(formula.text, term.terms, coding.columns) for term in formula.random]
    blocks = [(coder.names, torch.from_numpy(coder(values))) for coder in random]
    effects = _effects(formula, rows, blocks, coding.groups)
    offset = np.zeros(len(rows))
    for expression in formula.offsets:
        offset += _numbers(values, expression, f"offset({expression.name})")
    groups_of = {each.factor: each.groups for each in effects}
    return Design(
        response=formula.response.text,
        y=torch.tensor(y),
        trials=torch.tensor(trials),
        offset=torch.from_numpy(offset),
        fixed=matrix,
        names=fixed.names,
        effects=effects,
        coding=replace(coding, kept=values.kept, groups=groups_of),
        data=rows,
    )


def _numbers(values: Values, expression: Component, what: str) -> NDArray[np.float64]:
    """Return the finite values of an expression that is not a term, (rows,)."""
    found = values.evaluate(expression)
    if not types.is_numeric_dtype(found):
        raise ValueError(f"{what} must be numbers, got {found.iloc[0]!r}")
    numbers = found.to_numpy(np.float64)
    check_finite(numbers, what)
    return numbers


def _effects(
    formula: Formula,
    rows: pd.DataFrame,
    blocks: list[tuple[tuple[str, ...], Tensor]],
    known: Mapping[str, tuple[str, ...]],
) -> tuple[Effects, ...]:
    """Join the blocks of each factor; b:a is a:b, under the name that comes first."""
    found: dict[frozenset[str], tuple[str, ...]] = {}
    members = defaultdict[frozenset[str], list[tuple[tuple[str, ...], Tensor]]](list)
    for term, (labels, matrix) in zip(formula.random, blocks, strict=True):
        each = [((label,), matrix[:, i : i + 1]) for i, label in enumerate(labels)]
        for names in term.factors:
            found.setdefault(frozenset(names), names)
            members[frozenset(names)] += [(labels, matrix)] if term.correlated else each
    effects = []
    for key, names in found.items():
        factor = ":".join(names)
        labels, index = groups(rows, names)
        every = dict.fromkeys((*known.get(factor, ()), *labels))
        place = {label: i for i, label in enumerate(every)}
        # The last entry is for rows without a group, whose index is −1.
        index = np.array([*(place[label] for label in labels), -1])[index]
        terms, columns = zip(*members[key], strict=True)
        effects.append(
            Effects(
                factor,
                tuple(place),
                torch.from_numpy(index),
                tuple(chain.from_iterable(terms)),
                torch.cat(columns, 1),
                tuple(map(len, terms)),
            )
        )
    return tuple(effects)


def _read_response(
    formula: Formula, data: pd.DataFrame
) -> tuple[NDArray[np.float64], NDArray[np.float64], str | None]:
    """Return y and the numbers of trials, (rows,) each, and the level that is coded as 1."""
    side = formula.response
    values = Values(formula.text, _coerced(data, side.value.columns))
    y, success = _binary(values.evaluate(side.value), side.text, side.level)
    check_finite(y, f"the response {side.text!r}")
    return y, _trials(formula, data), success


def _trials(formula: Formula, data: pd.DataFrame) -> NDArray[np.float64]:
    """Return the numbers of trials, (rows,); 1 if the formula has none."""
    side = formula.response
    if side.trials is None:
        return np.ones(len(data))
    values = Values(formula.text, _coerced(data, side.trial_columns))
    return _numbers(values, side.trials, f"the trials in {side.text!r}")


def _coerced(data: pd.DataFrame, names: frozenset[str]) -> pd.DataFrame:
    columns = {name: _as_text(data[name].infer_objects()) for name in names}
    return pd.DataFrame(
        {name: coerce(values, describe(values, coded=False)) for name, values in columns.items()},
        index=data.index,
    )


def _as_text(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return booleans as text, which has levels."""
    return values.map({False: "False", True: "True"}) if types.is_bool_dtype(values) else values


def _binary(
    values: pd.Series[Any], text: str, level: str | None
) -> tuple[NDArray[np.float64], str | None]:
    values = _as_text(values)
    if types.is_numeric_dtype(values) and level is None:
        return values.to_numpy(np.float64), None
    levels = [str(found) for found in describe(values, coded=True).levels]
    if level is None and len(levels) > 2:
        raise ValueError(
            f"the response {text!r} must be numeric or have two levels, got {len(levels)} levels "
            f"such as {levels[0]!r}; name the one to code as 1: {text}['{levels[0]}'] ~ …"
        )
    if len(levels) == 1:
        raise ValueError(f"the response {text!r} is {levels[0]!r} in all rows; it must vary")
    success = levels[-1] if level is None else level
    if success not in levels:
        raise ValueError(
            f"the response {text!r} is never {success!r}, only {', '.join(map(repr, levels[:5]))}"
            f"{alike(success, levels)}"
        )
    return np.asarray(values.astype(str) == success, np.float64), success


def _check_levels(columns: Mapping[str, Column]) -> None:
    """Raise if a column has a single level, or too many levels for a dense matrix."""
    for name, column in columns.items():
        if len(column.levels) == 1:
            raise ValueError(f"column {name!r} is {column.levels[0]!r} in all rows; leave it out")
        if len(column.levels) > _MOST_LEVELS:
            raise ValueError(
                f"column {name!r} has {len(column.levels)} levels, more than {_MOST_LEVELS}, and "
                f"each would be a column; use it as groups, (1 | {name}), or as a number"
            )


def _check_fixed(columns: Tensor, names: tuple[str, ...]) -> None:
    """Raise if a fixed effect is a linear combination of others, and name them."""
    found = _dependent(columns, names)
    if found is None:
        return
    name, others = found
    value = float(columns[0, names.index(name)])
    if others == ["Intercept"]:
        raise ValueError(f"{name!r} is {value} in all rows, like the intercept; leave it out")
    if not others:
        raise ValueError(f"{name!r} is 0 in all rows; leave it out")
    raise ValueError(
        f"fixed effects must be linearly independent, but {name!r} is a combination of "
        f"{', '.join(map(repr, others))}; leave one out"
    )


def _check_effects(effects: Effects) -> None:
    """Raise if a factor has a single group, or effects that are not identified."""
    factor, terms = effects.factor, effects.terms
    if len(effects.groups) < 2:
        raise ValueError(
            f"the grouping factor {factor!r} must have at least two groups, got "
            f"{effects.groups[0]!r} only; leave out its term"
        )
    for name in terms:
        if terms.count(name) > 1:
            raise ValueError(
                f"the random effect {name!r} of {factor!r} occurs {terms.count(name)} times; "
                "keep one: (x | g) has an intercept, (0 + x | g) has none"
            )
    start = 0
    for size in effects.blocks:
        block = list(range(start, start + size))
        for other in [[], *([j] for j in range(len(terms)) if j not in block)]:
            chosen = block + other
            found = _dependent(effects.columns[:, chosen], tuple(terms[j] for j in chosen))
            if found is not None:
                raise ValueError(
                    f"random effects of {factor!r} are indistinguishable: {found[0]!r} is a "
                    f"combination of {', '.join(map(repr, found[1])) or 0}; leave one out"
                )
        start += size


def _dependent(columns: Tensor, names: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """Find the first column that is a combination of earlier ones; return it and those."""
    norms = torch.linalg.vector_norm(columns, dim=0)
    r = torch.linalg.qr(columns / torch.where(norms > 0.0, norms, 1.0), mode="r").R
    for j, name in enumerate(names):
        if j >= len(r) or abs(float(r[j, j])) <= _DEPENDENT:
            weights = torch.linalg.solve(r[:j, :j], r[:j, j])
            return name, [names[i] for i in range(j) if abs(float(weights[i])) > 1e-6]
    return None
