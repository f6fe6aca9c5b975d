"""Whether effects can be told apart.

Columns must be linearly independent. Let a block with columns Z have the free covariance V. An
effect with variance s² and the column Z w in another block cannot be told from V + s² w wᵀ: no
column may be a combination of those of another block.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mlmcgrad.mixed.columns import Column
from mlmcgrad.mixed.matrices import Effects

# Of the norm of a column: what is left after the columns before it, if they explain it.
_NOTHING = 1e-10
# Levels of a fixed effect, which is a dense matrix.
_MANY = 1000


def check_levels(columns: Mapping[str, Column]) -> None:
    """Refuse columns with one level, and those whose levels would be a column each by thousands."""
    for name, column in columns.items():
        if len(column.levels) == 1:
            raise ValueError(f"column {name!r} is {column.levels[0]!r} in all rows; leave it out")
        if len(column.levels) > _MANY:
            raise ValueError(
                f"column {name!r} has {len(column.levels)} levels, more than {_MANY}, and each "
                f"would be a column; use it as groups, (1 | {name}), or as a number"
            )


def check_fixed(columns: Tensor, names: tuple[str, ...]) -> None:
    """Refuse fixed effects that are combinations of others, and name them."""
    found = _dependent(columns, names)
    if found is None:
        return
    name, others = found
    value = float(columns[0, names.index(name)])
    if others == ["Intercept"]:
        raise ValueError(f"{name!r} is {value} in all rows, beside the intercept; leave it out")
    if not others:
        raise ValueError(f"{name!r} is 0 in all rows; leave it out")
    raise ValueError(
        f"fixed effects must be linearly independent, but {name!r} is a combination of "
        f"{', '.join(map(repr, others))}; leave one out"
    )


def check_effects(effects: Effects) -> None:
    """Refuse random effects of which there is one group, or that are not identified."""
    factor, terms = effects.factor, effects.terms
    if len(effects.groups) < 2:
        raise ValueError(
            f"the grouping factor {factor!r} must have at least two groups, got "
            f"{effects.groups[0]!r} only; leave out its term"
        )
    for name in terms:
        if terms.count(name) > 1:
            raise ValueError(
                f"the random effect {name!r} of {factor!r} is there {terms.count(name)} times; "
                "keep one; (x | g) has an intercept, (0 + x | g) has none"
            )
    start = 0
    for size in effects.blocks:
        block = list(range(start, start + size))
        for other in [[], *([j] for j in range(len(terms)) if j not in block)]:
            chosen = block + other
            found = _dependent(effects.columns[:, chosen], tuple(terms[j] for j in chosen))
            if found is not None:
                raise ValueError(
                    f"random effects of {factor!r} cannot be told apart: {found[0]!r} is "
                    f"{' + '.join(map(repr, found[1])) or '0'} up to factors; leave one out"
                )
        start += size


def _dependent(columns: Tensor, names: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """The first column that is a combination of those before it, and of which ones."""
    norms = torch.linalg.vector_norm(columns, dim=0)
    r = torch.linalg.qr(columns / torch.where(norms > 0.0, norms, 1.0), mode="r").R
    for j, name in enumerate(names):
        if j >= len(r) or abs(float(r[j, j])) <= _NOTHING:
            weights = torch.linalg.solve(r[:j, :j], r[:j, j])
            return name, [names[i] for i in range(j) if abs(float(weights[i])) > 1e-6]
    return None
