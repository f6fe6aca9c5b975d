"""The table of a fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from mlmcgrad.mixed.formula import printable

if TYPE_CHECKING:
    from mlmcgrad.mixed.result import Fit

Row: TypeAlias = tuple[str, ...]
_LARGEST = 12  # characters of a number


def table(fit: Fit) -> str:
    """Format estimates with their errors, random effects, log-likelihood, certificate, notes."""
    link = getattr(getattr(fit.family, "link", None), "name", None)
    what = f"{fit.family.name} ({link})" if link else fit.family.name
    groups = ", ".join(f"{len(f.groups)} groups of {f.name}" for f in fit.factors)
    formula = " ".join(fit.formula.split())
    parts = [
        f"{printable(formula)}\n{printable(what)}: {fit.nobs} rows, {printable(groups)}",
        _fixed(fit),
        _random(fit),
        _summary(fit),
    ]
    return "\n\n".join(parts)


def _fixed(fit: Fit) -> str:
    rows: list[Row] = [
        ("Fixed effects", "estimate", "std. error", "MC error", "z", "p", "95 % interval", "")
    ]
    columns = (fit.params, fit.bse, fit.monte_carlo_errors, fit.tvalues, fit.pvalues)
    ends = fit.conf_int().to_numpy().tolist()
    for name, (low, high), value, error, noise, z, p in zip(
        fit.names, ends, *(column.tolist() for column in columns), strict=True
    ):
        cells = (number(value), number(error), number(noise, 2), f"{z:.2f}", _p(p))
        rows.append((name, *cells, number(low), number(high)))
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
    lines = [
        f"Log-likelihood {fit.llf:.3f} ± {number(fit.llf_se, 2)}, AIC {fit.aic:.2f}, "
        f"BIC {fit.bic:.2f}; {fit.iterations} iterations",
        "Standard errors from the observed information (Louis' identity), with Monte Carlo errors "
        f"of at most {100.0 * float(fit.standard_error_noise.max()):.2g} %.",
    ]
    certificate = fit.certificate
    if certificate is not None:
        verdict = "holds" if certificate.holds else "DOES NOT HOLD"
        lines.append(
            f"Certificate {verdict}: {certificate.scores} independent score estimates place the "
            f"maximum\nwithin {certificate.bound:.2g} standard errors of the estimates "
            "(95 % bound)."
        )
    if fit.problem:
        lines.append(f"PROBLEM: {printable(fit.problem)}")
    return "\n".join([*lines, *(f"Note: {printable(note)}" for note in fit.notes)])


def number(value: float, digits: int = 4) -> str:
    """Format a number with a few significant digits."""
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
    """Align the first column to the left and the others to the right."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first = row[0].ljust(widths[0])
        rest = "".join(
            f"  {cell.rjust(width)}" for cell, width in zip(row[1:], widths[1:], strict=True)
        )
        lines.append((first + rest).rstrip())
    return "\n".join(lines)
