"""Formula and data as tensors.

    η_i = o_i + x_iᵀβ + Σ_f z_{f,i}ᵀ b_{f, g_f(i)},      b_{f,g} ~ N(0, Σ_f) for each group g,

with fixed columns x (`fixed`), offset o, and for each grouping factor f the few columns z_f of a
row (`Effects.columns`) and the index of its group (`Effects.index`): memory is rows × columns,
never rows × groups. Σ_f is block diagonal, a block for each (… | f) in the formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from mlmcgrad.mixed.columns import Column, Data, describe, frame, select
from mlmcgrad.mixed.formula import parse
from mlmcgrad.mixed.identified import check_effects, check_fixed, check_levels
from mlmcgrad.mixed.matrices import Effects, matrices
from mlmcgrad.mixed.response import response, trials


@final
@dataclass(frozen=True)
class Design:
    """A model's data.

    Args:
        response: the left side of the formula.
        y: the response, (rows,) float64.
        trials: of each row, (rows,); 1 unless the formula says otherwise.
        offset: what is added to the linear predictor, (rows,).
        fixed: columns of the fixed effects, (rows, names).
        names: "Intercept", "age", "urban[yes]", …
        effects: one for each grouping factor, the terms of one factor joined.
        dropped: how many rows had missing values.
        coding: how the columns were made, for new data.
    """

    response: str
    y: Tensor
    trials: Tensor
    offset: Tensor
    fixed: Tensor
    names: tuple[str, ...]
    effects: tuple[Effects, ...]
    dropped: int
    coding: Coding

    @property
    def formula(self) -> str:
        """The formula."""
        return self.coding.formula

    @property
    def success(self) -> str | None:
        """The level of the response that counts as 1, if it has levels."""
        return self.coding.success


@final
@dataclass(frozen=True)
class Coding:
    """What must be known to code new data as the data of a fit were coded.

    Args:
        formula: of the model.
        success: the level of the response that counts as 1, if it has levels.
        columns: kind and levels of each column.
        kept: numbers of each center() and scale(), in the order of the formula.
        groups: labels of the groups of each factor.
    """

    formula: str
    success: str | None
    columns: Mapping[str, Column]
    kept: tuple[tuple[float, ...], ...]
    groups: Mapping[str, tuple[str, ...]]

    def design(self, data: Data) -> Design:
        """The design of new data; no response is needed, y is NaN.

        Args:
            data: a row for each prediction. Unknown groups have the index −1, an unknown level or
                a missing value elsewhere is an error; trials are 1 where data do not have them.
        """
        parsed, table = parse(self.formula), frame(data)
        rows = select(table, parsed.predictors | parsed.grouping).reset_index(drop=True)
        if rows.empty:
            raise ValueError("data has 0 rows; give one for each prediction")
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
            counts = trials(parsed, select(table, known).reset_index(drop=True))
        made = matrices(parsed, rows, self.columns, self.kept, self.groups)
        return Design(
            parsed.response.text,
            torch.full((len(rows),), torch.nan, dtype=torch.float64),
            torch.tensor(counts),
            made.offset,
            made.fixed,
            made.names,
            made.effects,
            0,
            self,
        )

    def state(self) -> dict[str, Any]:
        """The coding as lists, strings and numbers, for a JSON file."""
        columns = {
            n: {"number": c.number, "levels": list(c.levels)} for n, c in self.columns.items()
        }
        return {
            "formula": self.formula,
            "success": self.success,
            "columns": columns,
            "kept": [list(numbers) for numbers in self.kept],
            "groups": {factor: list(labels) for factor, labels in self.groups.items()},
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Coding:
        """The coding that `state` has described."""
        columns = state["columns"].items()
        return Coding(
            state["formula"],
            state["success"],
            {name: Column(c["number"], tuple(c["levels"])) for name, c in columns},
            tuple(tuple(numbers) for numbers in state["kept"]),
            {factor: tuple(labels) for factor, labels in state["groups"].items()},
        )


def build(formula: str, data: Data) -> Design:
    """Evaluate a formula; rows with a missing value in one of its columns are left out.

    Args:
        formula: for example "use ~ age + urban + (1 + urban | district)".
        data: a pandas frame, a dict of columns, or the path of a CSV file.

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
    used = side.columns | side.trial_columns | parsed.predictors | parsed.grouping
    table = select(frame(data), used)
    rows = table.dropna().reset_index(drop=True)
    if rows.empty:
        empty = [name for name in table if table[name].isna().all()]
        why = f"column {empty[0]!r} has no values" if len(table) and empty else "each has a gap"
        raise ValueError(f"data has {len(table)} rows, none without missing values: {why}")
    y, counts, success = response(parsed, rows)
    columns = {n: describe(rows[n], n in parsed.coded) for n in sorted(parsed.predictors)}
    check_levels(columns)
    made = matrices(parsed, rows, columns)
    check_fixed(made.fixed, made.names)
    for effect in made.effects:
        check_effects(effect)
    known = {effect.factor: effect.groups for effect in made.effects}
    return Design(
        side.text,
        torch.tensor(y),
        torch.tensor(counts),
        made.offset,
        made.fixed,
        made.names,
        made.effects,
        len(table) - len(rows),
        Coding(formula, success, columns, made.kept, known),
    )


__all__ = ["Coding", "Design", "Effects", "build"]
