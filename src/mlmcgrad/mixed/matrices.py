"""The right side of a formula as tensors: offset, fixed effects, random effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd
import torch
from pandas.api import types
from torch import Tensor

from mlmcgrad.mixed.coding import Coder, evaluate
from mlmcgrad.mixed.columns import Column, check_finite, coerce, groups
from mlmcgrad.mixed.formula import Formula


@final
@dataclass(frozen=True)
class Effects:
    """Random effects of one grouping factor.

    Args:
        factor: its name, "district" or "a:b".
        groups: labels of the groups.
        index: group of each row, (rows,) int64; −1 for a group that the fit has not seen.
        terms: names of the columns: "Intercept", "urban[yes]", …
        columns: (rows, terms) float64.
        blocks: sizes of the correlated blocks of terms: (2,) for (1 + x | g), (1, 1) for
            (1 | g) + (0 + x | g).
    """

    factor: str
    groups: tuple[str, ...]
    index: Tensor
    terms: tuple[str, ...]
    columns: Tensor
    blocks: tuple[int, ...]


@final
@dataclass(frozen=True)
class Matrices:
    """Offset (rows,), fixed columns (rows, names), effects; the numbers of center() and scale()."""

    offset: Tensor
    fixed: Tensor
    names: tuple[str, ...]
    effects: tuple[Effects, ...]
    kept: tuple[tuple[float, ...], ...]


def matrices(
    formula: Formula,
    rows: pd.DataFrame,
    columns: Mapping[str, Column],
    kept: Sequence[tuple[float, ...]] | None = None,
    known: Mapping[str, tuple[str, ...]] | None = None,
) -> Matrices:
    """Evaluate the right side of a formula.

    Args:
        formula: what to evaluate.
        rows: its columns, without missing values (except in factors, for new data).
        columns: how to read them.
        kept: numbers of center() and scale(); by default those of these rows.
        known: groups of each factor; by default those of these rows.
    """
    coerced = {name: coerce(rows[name], column) for name, column in columns.items()}
    data = pd.DataFrame(coerced, index=rows.index)
    source = data if kept is None else iter(kept)
    fixed = Coder(formula.text, formula.fixed, columns, source)
    bars = [Coder(formula.text, bar.terms, columns, source) for bar in formula.bars]
    return Matrices(
        _offset(formula, data),
        torch.from_numpy(fixed(data)),
        fixed.names,
        _effects(formula, rows, [(bar.names, torch.from_numpy(bar(data))) for bar in bars], known),
        tuple(numbers for coder in (fixed, *bars) for numbers in coder.kept),
    )


def _offset(formula: Formula, data: pd.DataFrame) -> Tensor:
    total = np.zeros(len(data))
    for expression in formula.offsets:
        values = evaluate(formula.text, expression, data)
        if not types.is_numeric_dtype(values):
            raise ValueError(f"offset({expression}) must be numbers, got {values.iloc[0]!r}")
        total += values.to_numpy(np.float64)
    check_finite(total, f"the offset in the formula {formula.text!r}")
    return torch.from_numpy(total)


def _effects(
    formula: Formula,
    rows: pd.DataFrame,
    blocks: list[tuple[tuple[str, ...], Tensor]],
    known: Mapping[str, tuple[str, ...]] | None,
) -> tuple[Effects, ...]:
    """The blocks of each factor side by side; a:b is b:a, under the name that comes first."""
    found: dict[frozenset[str], tuple[str, ...]] = {}
    members: dict[frozenset[str], list[tuple[tuple[str, ...], Tensor]]] = {}
    for bar, block in zip(formula.bars, blocks, strict=True):
        for names in bar.factors:
            found.setdefault(frozenset(names), names)
            members.setdefault(frozenset(names), []).append(block)
    effects = []
    for key, names in found.items():
        factor = ":".join(names)
        labels, index = groups(rows, names)
        if known is not None:
            place = {label: i for i, label in enumerate(known[factor])}
            # The last entry is for rows without a group, whose index is −1.
            index = np.array([*(place.get(label, -1) for label in labels), -1])[index]
            labels = known[factor]
        parts = members[key]
        effects.append(
            Effects(
                factor,
                labels,
                torch.from_numpy(index),
                tuple(name for terms, _ in parts for name in terms),
                torch.cat([columns for _, columns in parts], 1),
                tuple(len(terms) for terms, _ in parts),
            )
        )
    return tuple(effects)
