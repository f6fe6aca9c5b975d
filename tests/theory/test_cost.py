"""Expected and plain chain steps against direct sums."""

from __future__ import annotations

import math

import pytest

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
    assert average_cost(N, truncation) == pytest.approx(sum(lengths))


def test_cost_of_one_level_is_the_mean_chain_length() -> None:
    """Σ_{k≤κ} 2^{-k} 2^k + 2^{-κ} · 1 = κ + 2^{-κ}."""
    for kappa in range(12):
        mean = sum(2.0**-k * 2**k for k in range(1, kappa + 1)) + 2.0**-kappa
        assert expected_cost(1, 2.0**kappa) == pytest.approx(mean)


def test_large_n_is_level_by_level() -> None:
    assert expected_cost(10**12, 8.0) == pytest.approx(10**12 * 3.125)
    assert expected_cost(10**12, power(1.0, 0.5)) < 10**12 * 20
    assert average_cost(10**12, power(1.0, 0.5)) == pytest.approx(2 / 3 * 10**18, rel=1e-6)


def test_bad_n_is_refused() -> None:
    with pytest.raises(ValueError, match="N must be an integer ≥ 1, got 0"):
        expected_cost(0, 2.0)
