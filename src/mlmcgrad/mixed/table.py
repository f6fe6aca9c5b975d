"""A fit as text: the table that `print` shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from scipy.special import ndtr

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit

Row: TypeAlias = tuple[str, ...]
_LARGEST = 12  # characters of a number


def table(fit: Fit) -> str:
    """Estimates with their errors, random effects, log-likelihood, certificate, notes."""
    link = getattr(getattr(fit.family, "link", None), "name", None)
    what = f"{fit.family.name} ({link})" if link else fit.family.name
    groups = ", ".join(f"{len(f.groups)} groups of {f.name}" for f in fit.factors)
    parts = [
        f"{fit.formula}\n{what}: {fit.rows} rows, {groups}",
        _fixed(fit),
        _random(fit),
        _summary(fit),
    ]
    return "\n\n".join(parts)


def _fixed(fit: Fit) -> str:
    rows: list[Row] = [
        ("Fixed effects", "estimate", "std. error", "MC error", "z", "p", "95 % interval", "")
    ]
    for name, (low, high) in zip(fit.names, fit.intervals.to_numpy().tolist(), strict=True):
        value, error = float(fit.fixed[name]), float(fit.standard_errors[name])
        z = value / error if error > 0.0 else math.nan
        rows.append(
            (
                name,
                number(value),
                number(error),
                number(float(fit.monte_carlo_errors[name]), 2),
                f"{z:.2f}",
                _p(2.0 * float(ndtr(-abs(z)))),
                number(low),
                number(high),
            )
        )
    return _aligned(rows)


def _random(fit: Fit) -> str:
    most = max(len(f.terms) for f in fit.factors)
    gaps = [""] * (most - 1)
    rows: list[Row] = [
        ("Random effects", "sd", "95 % interval", "", "correlations" if most > 1 else "", *gaps)
    ]
    for f in fit.factors:
        rows.append((f.name, "", "", "", "", *gaps))
        intervals, correlation = fit.sd_intervals[f.name], fit.correlation[f.name]
        for i, (term, (low, high)) in enumerate(
            zip(f.terms, intervals.to_numpy().tolist(), strict=True)
        ):
            known = [f"{value:.2f}" for value in correlation.iloc[i, :i].tolist()]
            cells = [f"  {term}", number(float(fit.sd[f.name][term])), number(low), number(high)]
            rows.append((*cells, *known, *[""] * (most - len(known))))
    found = fit.dispersion
    if found is not None:
        rows.append((str(found.name), *map(number, found.tolist()), "", *gaps))
    return _aligned(rows)


def _summary(fit: Fit) -> str:
    value, error = fit.log_likelihood
    lines = [
        f"Log-likelihood {value:.3f} ± {number(error, 2)}, AIC {fit.aic:.2f}, BIC {fit.bic:.2f}; "
        f"{fit.iterations} iterations",
        "Standard errors from the observed information (Louis' identity).",
    ]
    found = fit.certificate
    if found is not None:
        worst = int(found.displacement.abs().argmax())
        far, width = abs(float(found.displacement[worst])), float(found.error[worst])
        verdict = "holds" if found.holds else "DOES NOT HOLD"
        lines.append(
            f"Certificate {verdict}: by {found.passes} scores that had no part in it, the maximum "
            f"is at most\n{far:.3f} ± {width:.3f} standard errors away in any parameter "
            f"(p = {_p(found.p_value)})."
        )
    if fit.problem:
        lines.append(f"PROBLEM: {fit.problem}")
    return "\n".join([*lines, *(f"Note: {note}" for note in fit.notes)])


def number(value: float, digits: int = 4) -> str:
    """A number with a few significant digits."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    if value == 0.0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    plain = f"{value:.{min(places, 10)}f}"
    return plain if len(plain) <= _LARGEST and places <= 8 else f"{value:.{digits - 1}e}"


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _aligned(rows: list[Row]) -> str:
    """Columns side by side, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first = row[0].ljust(widths[0])
        rest = "".join(
            f"  {cell.rjust(width)}" for cell, width in zip(row[1:], widths[1:], strict=True)
        )
        lines.append((first + rest).rstrip())
    return "\n".join(lines)
