"""Several columns of one number: orthogonal polynomials, B-splines and natural splines.

A basis is fixed by numbers computed once from the data of the fit, so that new data are coded in
the same way.

- `poly(x, degree)`: p_1(x) … p_degree(x), orthonormal over the rows and orthogonal to the
  intercept, as R's poly. With p_{−1} = 0 and P_0 = 1 the recursion is

      P_{k+1}(x) = (x − a_k) P_k(x) − (n_k/n_{k−1}) P_{k−1}(x),  a_k = Σ x P_k²/n_k,  n_k = Σ P_k².

- `bs(x, df, knots, degree=3)`: B-splines without the first one, which the intercept spans. Beyond
  the range of the data of the fit they are not defined.
- `ns(x, df, knots)`: natural cubic splines, linear beyond the outermost knots. With knots
  t_0 < … < t_K and d_j(x) = ((x − t_j)_+³ − (x − t_K)_+³)/(t_K − t_j), the columns are x and
  d_j − d_{K−1} for j = 0 … K − 2 (Hastie, Tibshirani and Friedman, 2009, section 5.2.1), in
  units of the range.

The inner knots are given, or are quantiles of the data; the outer ones are the range of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline

Floats: TypeAlias = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Basis:
    """The function of one number that a formula names."""

    kind: str  # poly, bs or ns
    size: int  # number of columns
    degree: int  # of the polynomials
    knots: tuple[float, ...] | None = None  # inner knots; None means quantiles of the data

    def numbers(self, x: Floats) -> tuple[float, ...]:
        """Return what the columns depend on, computed from the data of the fit."""
        distinct = len(np.unique(x))
        if distinct <= self.size:
            raise ValueError(
                f"{self.kind}() with {self.size} columns needs more than {self.size} distinct "
                f"values, got {distinct}"
            )
        if self.kind == "poly":
            return _recursion(x, self.size)
        low, high = float(x.min()), float(x.max())
        inner: Sequence[float] = self.knots or ()
        if self.knots is None:
            count = self.size - (self.degree if self.kind == "bs" else 1)
            inner = np.quantile(x, np.linspace(0.0, 1.0, count + 2)[1:-1]).tolist()
        every = [low, *inner, high]
        if not all(a < b for a, b in pairwise(every)):
            raise ValueError(
                f"the knots of {self.kind}() must increase and lie inside the range of the data, "
                f"got {', '.join(f'{knot:g}' for knot in inner)} in [{low:g}, {high:g}]"
            )
        return tuple(every)

    def columns(self, x: Floats, numbers: tuple[float, ...]) -> Floats:
        """Return the columns, (rows, size)."""
        columns = {"poly": _poly, "bs": _bs, "ns": _ns}[self.kind]
        return columns(x, np.array(numbers), self)


def basis(
    kind: str,
    df: int | None = None,
    knots: Sequence[float] | float | None = None,
    degree: int | None = None,
) -> Basis:
    """Return the basis that a call in a formula describes.

    Args:
        kind: poly, bs or ns.
        df: number of columns; for poly the degree.
        knots: the inner knots, instead of `df`.
        degree: of bs, by default 3; for poly the same as `df`.

    Example:
        >>> basis("bs", df=5).size, basis("ns", knots=(1.0, 2.0)).size
        (5, 3)
    """
    if kind == "poly":
        df, degree = df if degree is None else degree, None
        if knots is not None or type(df) is not int or df < 1:
            raise ValueError("poly() needs a degree ≥ 1")
        return Basis(kind, df, df)
    if degree is not None and (kind == "ns" or type(degree) is not int or degree < 1):
        raise ValueError("degree is a whole number ≥ 1, and an argument of bs() only")
    order = (3 if degree is None else degree) if kind == "bs" else 3
    least = order if kind == "bs" else 1
    if (df is None) == (knots is None):
        raise ValueError(f"{kind}() needs either df or knots")
    if knots is not None:
        inner = tuple(map(float, np.atleast_1d(np.asarray(knots, np.float64))))
        return Basis(kind, len(inner) + least, order, inner)
    if type(df) is not int or df < least:
        raise ValueError(f"df of {kind}() must be a whole number ≥ {least}, got {df!r}")
    return Basis(kind, df, order)


def _recursion(x: Floats, degree: int) -> tuple[float, ...]:
    """Return a_0 … a_{degree−1}, then n_0 … n_degree."""
    shifts, norms = list[float](), [float(len(x))]
    before, now = np.zeros_like(x), np.ones_like(x)
    for _ in range(degree):
        shifts.append(float((x * now**2).sum() / norms[-1]))
        ratio = norms[-1] / norms[-2] if len(norms) > 1 else 0.0
        before, now = now, (x - shifts[-1]) * now - ratio * before
        norms.append(float((now**2).sum()))
    return (*shifts, *norms)


def _poly(x: Floats, numbers: Floats, basis: Basis) -> Floats:
    shifts, norms = numbers[: basis.size], numbers[basis.size :]
    found, before, now = [], np.zeros_like(x), np.ones_like(x)
    for k, shift in enumerate(shifts):
        ratio = norms[k] / norms[k - 1] if k else 0.0
        before, now = now, (x - shift) * now - ratio * before
        found.append(now / norms[k + 1] ** 0.5)
    return np.stack(found, 1)


def _bs(x: Floats, numbers: Floats, basis: Basis) -> Floats:
    low, high = numbers[0], numbers[-1]
    outside = x[(x < low) | (x > high)]
    if len(outside):
        raise ValueError(
            f"bs() is defined on the range of the data of the fit, [{low:g}, {high:g}], got "
            f"{outside[0]:g}; use ns(), which is linear beyond it"
        )
    knots = np.concatenate([[low] * basis.degree, numbers, [high] * basis.degree])
    return BSpline.design_matrix(x, knots, basis.degree).toarray()[:, 1:]


def _ns(x: Floats, numbers: Floats, basis: Basis) -> Floats:
    t = (numbers - numbers[0]) / (numbers[-1] - numbers[0])
    s = (x - numbers[0]) / (numbers[-1] - numbers[0])
    cubes = np.maximum(s[:, None] - t, 0.0) ** 3
    d = (cubes[:, :-1] - cubes[:, -1:]) / (t[-1] - t[:-1])
    return np.column_stack([s, d[:, :-1] - d[:, -1:]])
