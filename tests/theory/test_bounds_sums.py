"""Sums over iterations against closed forms, up to 10^14 terms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlmcgrad.schedules import power
from mlmcgrad.theory.bounds import EXACT, LONGEST_EXACT, grid, values

ZETA_HALF = -1.4603545088095868  # ζ(1/2)


@pytest.mark.parametrize("N", [2, 1023, 1024, 1025, 5000, 10**9, 10**14])
def test_integrated_sums_have_closed_forms(N: int) -> None:
    """Σ n = N(N+1)/2, and Σ n^{−1/2} = 2√N + ζ(1/2) + 1/(2√N) − 1/(24 N^{3/2}) + …"""
    sums = grid(N, [power(1.0, 1.0)], exact=2**10)
    assert sums.sums(sums.nodes) == pytest.approx(N * (N + 1) / 2, rel=1e-8)
    roots = 2 * math.sqrt(N) + ZETA_HALF + 1 / (2 * math.sqrt(N)) - 1 / (24 * N**1.5)
    assert sums.sums(sums.nodes**-0.5) == pytest.approx(roots, rel=1e-8 if N > 9 else 1e-3)


def test_terms_are_added_one_by_one_up_to_a_limit() -> None:
    assert len(grid(EXACT, [power(1.0, 1.0)]).nodes) == EXACT == 2**20
    assert len(grid(EXACT + 1, [power(1.0, 1.0)]).nodes) == EXACT + 12  # one panel
    # A function must be added term by term, which ends at 2^24.
    assert LONGEST_EXACT == len(grid(LONGEST_EXACT, [lambda n: 1.0]).nodes) == 2**24
    with pytest.raises(ValueError, match=r"N=16777217 is too many .* \(at most 16777216\)"):
        grid(2**24 + 1, [lambda n: 1.0])


def test_several_n_in_any_order() -> None:
    wanted = [3, 5000, 1, 10**6]
    sums = grid(wanted, [power(1.0, 1.0)], exact=2**10)
    assert sums.iterations.tolist() == wanted
    assert sums.sums(sums.nodes) == pytest.approx([n * (n + 1) / 2 for n in wanted], rel=1e-8)


def test_values_are_checked() -> None:
    n = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(values(power(2.0, -0.5), n, "gamma"), 2.0 / np.sqrt(n))
    np.testing.assert_allclose(values(lambda k: k * k, n, "gamma"), n**2)
    with pytest.raises(ValueError, match=r"gamma must be positive and finite .* got 0.0 at n = 2"):
        values(lambda k: float(k != 2), n, "gamma")
    with pytest.raises(ValueError, match="got inf at n = 3"):
        values(lambda k: math.inf if k == 3 else 1.0, n, "gamma")
