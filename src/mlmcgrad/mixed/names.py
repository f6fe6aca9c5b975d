"""What the entries of θ are called in figures and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit


def theta_names(fit: Fit) -> tuple[str, ...]:
    """A name for each entry of θ."""
    row, column = fit.layout.entries
    terms = [(f.name, term) for f in fit.factors for term in f.terms]
    several = len(fit.factors) > 1
    names = [f"{term} | {factor}" if several else term for factor, term in terms]
    entries = [
        f"sd({names[i]})" if i == j else f"Λ({names[i]}, {names[j]})"
        for i, j in zip(row.tolist(), column.tolist(), strict=True)
    ]
    last = [f"log {fit.family.dispersion}"] if fit.layout.dispersion else []
    return (*fit.names, *entries, *last)
