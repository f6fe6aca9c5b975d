"""The floor of chain lengths: exact where floats are, and blind to rounding where they are not."""

import math

import pytest

from mlmcgrad.levels import Geometric, Tabulated
from mlmcgrad.rounding import floor
from mlmcgrad.theory import Ergodicity
from mlmcgrad.theory.estimator_constants import bias_bound


@pytest.mark.parametrize("n", [1, 3, 93, 99, 123, 246])
def test_what_rounding_left_below_an_integer_counts_as_that_integer(n: int) -> None:
    assert floor(float(n)) == n
    assert floor(math.nextafter(n, 0.0)) == n
    assert floor(math.nextafter(n, math.inf)) == n
    assert floor(1.0 / (1.0 / n)) == n
    assert floor(n + 0.999) == n
    assert floor(n - 1e-9) == n - 1


def test_powers_of_two_are_exact_as_far_as_they_go() -> None:
    assert [floor(2.0**k) for k in range(63)] == [2**k for k in range(63)]
    assert all(Geometric().length(k) == 2**k for k in range(1, 63))


@pytest.mark.parametrize("n", [93, 99, 246])
def test_levels_and_theory_have_the_same_lengths(n: int) -> None:
    """1/(1/n) is just below n for these n: a level of length n, in sampling and in the bound."""
    law = Tabulated([1.0 / n] * n)
    assert 1.0 / (1.0 / n) < n
    assert law.length(1) == law.length(n) == n
    assert law.truncation_level(n - 0.5) == 0
    chain = Ergodicity(zeta=1.0, alpha=0.5, beta=2.0)
    assert bias_bound(1, chain, truncation=n, pmf=law.probabilities) == pytest.approx(4.0 / n)
