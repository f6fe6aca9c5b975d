"""Expected and plain chain steps against direct sums."""

from __future__ import annotations

import math

import pytest

from mlmcgrad.levels import Geometric
from mlmcgrad.schedules import Schedule, power
from mlmcgrad.theory import average_cost, expected_cost


@pytest.mark.parametrize(
    "truncation",
    [power(1.0, 0.5), power(3.0, 1.0), power(2.0, 0.0), power(9.0, -0.5), lambda n: 1.5 + n % 7],
)
@pytest.mark.parametrize("N", [1, 15, 16, 17, 1000])
def test_costs_are_the_direct_sums(truncation: Schedule, N: int) -> None:
    lengths = [truncation(n) for n in range(1, N + 1)]
    kappas = [math.floor(math.log2(t)) if t >= 2 else 0 for t in lengths]
    assert expected_cost(N, truncation) == pytest.approx(sum(k + 2.0**-k for k in kappas))
    assert average_cost(N, truncation) == pytest.approx(sum(2**k for k in kappas))


def test_cost_of_one_level_is_the_mean_chain_length() -> None:
    """Σ_{k≤κ} 2^{-k} 2^k + 2^{-κ} · 1 = κ + 2^{-κ}."""
    for kappa in range(12):
        mean = sum(2.0**-k * 2**k for k in range(1, kappa + 1)) + 2.0**-kappa
        assert expected_cost(1, 2.0**kappa) == pytest.approx(mean)


def test_large_n_is_level_by_level() -> None:
    assert expected_cost(10**12, 8.0) == pytest.approx(10**12 * 3.125)
    assert expected_cost(10**12, power(1.0, 0.5)) < 10**12 * 20
    # T_n = √n has level κ for 4^κ ≤ n < 4^{κ+1}: all of κ < 19, a part of κ = 19.
    full = sum(3 * 4**k * 2**k for k in range(19)) + (10**12 - 4**19 + 1) * 2**19
    assert average_cost(10**12, power(1.0, 0.5)) == pytest.approx(full, rel=1e-15)


def test_a_falling_truncation_is_added_term_by_term() -> None:
    """T_n = 9/√n: κ = 3 for n = 1, 2 for n ≤ 5, 1 for n ≤ 20 and 0 from there on."""
    N = 2**21
    expected = 3.125 + 4 * 2.25 + 15 * 1.5 + (N - 20)
    assert expected_cost(N, power(9.0, -0.5)) == expected
    assert average_cost(N, power(9.0, -0.5)) == 8 + 4 * 4 + 15 * 2 + (N - 20)


def test_an_average_with_the_same_bias_is_shorter_than_the_truncation() -> None:
    """For T = 100 the mean of the multilevel estimator is that of 64 steps: not 100 steps saved."""
    law = Geometric()
    kappa = law.truncation_level(100.0)
    assert average_cost(5, 100.0) == 5 * law.length(kappa) == 5 * 64
    assert expected_cost(5, 100.0) == 5 * law.expected_length(100.0)


def test_bad_n_is_refused() -> None:
    with pytest.raises(ValueError, match="N must be an integer ≥ 1, got 0"):
        expected_cost(0, 2.0)
