"""The three bounds: every term by hand for small N, limits, monotonicity, vectorisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mlmcgrad.schedules import constant, power
from mlmcgrad.theory import Assumptions, Bound, Constants, amsgrad_coefficients, bounds

LOG2 = math.log(2)


def inverse(n: int) -> float:
    return 1 / n


def doubling(n: int) -> float:
    return 2.0**n


def test_general_by_hand() -> None:
    """n = 1, 2, 3: ϖ = 11/12, Σ γλ̄/T = 4/3, Σ γ²λ̄² log T = (22/3) log 2; G² = 9, not 2G."""
    problem = Assumptions(Constants(d=1, c1=3.0, c2=5.0, c3=0.0), G=3.0, L=0.5, gap=1.0)
    b = bounds.general(2, problem, gamma=inverse, truncation=doubling, lower=0.5, upper=2.0)
    assert b.weight == pytest.approx(11 / 12)
    assert b.terms["initial"] == pytest.approx(24 / 11)
    assert b.terms["bias"] == pytest.approx(864 / 11)
    assert b.terms["second_moment"] == pytest.approx(180 * LOG2)
    assert b.total == pytest.approx(888 / 11 + 180 * LOG2)
    assert sum(b.terms.values()) == pytest.approx(b.total)


def test_adagrad_by_hand() -> None:
    """n = 1, 2, ε_n = n, M_0 = 2: ε̲_0 = 1, ε̲_1 = (1/4 + 4)^{-1/2} = 2/√17."""
    problem = Assumptions(Constants(d=1, c1=3.0, c2=5.0, c3=7.0), G=3.0, L=0.5, gap=1.0)
    b = bounds.adagrad(
        1, problem, gamma=inverse, truncation=doubling, epsilon=float, clip=lambda n: 2.0 * n
    )
    weight = 1 + 1 / math.sqrt(17)
    assert b.weight == pytest.approx(weight)
    assert b.terms["initial"] == pytest.approx(2 / weight)
    assert b.terms["bias"] == pytest.approx(2 * 27 * 0.75 / weight)
    assert b.terms["third_moment"] == pytest.approx(2 * 7 * 81 * (4 + math.sqrt(2)) / weight)
    assert b.terms["second_moment"] == pytest.approx(2 * 5 * 9 * 0.25 * 3 * LOG2 / weight)
    assert sum(b.terms.values()) == pytest.approx(b.total)


def test_adagrad_keeps_the_largest_threshold() -> None:
    """clip = 4, 1, 1: the supremum over past thresholds is 4 at n = 1 and stays so."""
    problem = Assumptions(Constants(1, c1=0.0, c2=0.0, c3=0.0), G=1.0, L=1.0, gap=1.0)
    b = bounds.adagrad(
        [1, 2], problem, gamma=1.0, truncation=2.0, clip=lambda n: 4.0 if n == 1 else 1.0
    )
    assert b.weight == pytest.approx([1 + 1 / math.sqrt(17), 1 + 2 / math.sqrt(17)])


def test_amsgrad_by_hand() -> None:
    """N = 2, δ = 4, M² = 10: ε̲_1 = 1/3, ε̲_2 = 11.5^{-1/2}; b's as in test_bounds_amsgrad."""
    problem = Assumptions(Constants(d=4, c1=5.0, c2=7.0, c3=0.0), G=2.0, L=3.0, gap=1.0)

    def bound(as_printed: bool) -> Bound:
        return bounds.amsgrad(
            2,
            problem,
            gamma=inverse,
            truncation=doubling,
            rho1=0.5,
            rho2=0.5,
            delta=4.0,
            clip=10**0.5,
            as_printed=as_printed,
        )

    b = bound(as_printed=False)
    weight = 1 / 6 + 1 / (3 * math.sqrt(11.5))
    assert b.weight == pytest.approx(weight)
    expected = {
        "initial": 1.0,
        "constant": 14 + 21 * LOG2,
        "bias": 10 / 6,  # γ_2/T_2 + γ_3/T_3 = 1/8 + 1/24
        "second_moment": 80.5 * 5 / 6 * LOG2,  # 1/4 · 2 + 1/9 · 3
        "momentum": 80.5 * 7 / 8 * LOG2,  # 1/2 + 3/4 · 1/4 · 2
        "step_change": 47 / 36,  # 3/4 + 5/9
    }
    assert {k: float(v[0]) * weight for k, v in b.terms.items()} == pytest.approx(expected)
    assert b.total == pytest.approx(sum(expected.values()) / weight)
    printed = bound(as_printed=True).terms
    assert printed["momentum"] == pytest.approx(b.terms["momentum"] / 2)
    assert printed["bias"] == b.terms["bias"]


PROBLEM = Assumptions(Constants(d=2, c1=4.0, c2=60.0, c3=900.0), G=1.5, L=0.7, gap=2.0)
METHODS: list[Callable[..., Bound]] = [bounds.general, bounds.adagrad, bounds.amsgrad]


@pytest.mark.parametrize(
    ("method", "defaults"),
    [
        (bounds.general, {"lower": 1.0, "upper": 1.0}),
        (bounds.adagrad, {"epsilon": 1.0, "clip": 1.0}),
        (
            bounds.amsgrad,
            {"rho1": 0.9, "rho2": 0.999, "delta": 1.0, "clip": 1.0, "as_printed": False},
        ),
    ],
)
def test_defaults_are_those_of_the_optimizers(
    method: Callable[..., Bound], defaults: dict[str, float]
) -> None:
    schedules = {"gamma": power(0.1, -0.5), "truncation": power(3.0, 0.5)}
    plain, spelt = method(9, PROBLEM, **schedules), method(9, PROBLEM, **schedules, **defaults)
    for name, term in spelt.terms.items():
        np.testing.assert_array_equal(plain.terms[name], term, name)
    np.testing.assert_array_equal(plain.weight, spelt.weight)


@pytest.mark.parametrize("method", METHODS)
def test_several_n_equal_one_by_one(method: Callable[..., Bound]) -> None:
    wanted = [1, 50, 7, 7, 400]
    schedules = {"gamma": power(0.1, -0.5), "truncation": power(1.0, 0.5)}
    together = method(np.array(wanted), PROBLEM, **schedules)
    assert together.iterations.tolist() == wanted
    for i, n in enumerate(wanted):
        single = method(n, PROBLEM, **schedules)
        assert together.total[i] == pytest.approx(single.total[0], rel=1e-13)
    functions = {"gamma": lambda n: 0.1 * n**-0.5, "truncation": lambda n: n**0.5}
    assert method(wanted, PROBLEM, **functions).total == pytest.approx(together.total, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_integrated_sums_agree_with_exact_ones(method: Callable[..., Bound]) -> None:
    schedules = {"gamma": power(0.1, -0.5), "truncation": power(1.0, 0.5)}
    exact = method([5000, 10**6], PROBLEM, **schedules)
    integrated = method([5000, 10**6], PROBLEM, **schedules, exact=2**10)
    for name, term in exact.terms.items():
        assert integrated.terms[name] == pytest.approx(term, rel=1e-8)
    assert method(10**14, PROBLEM, **schedules).total < exact.total[1]


@pytest.mark.parametrize("method", METHODS)
def test_early_truncations_below_two_count_as_two(method: Callable[..., Bound]) -> None:
    """Erratum 8: with T_n = √n < 2 the printed second moment is 0; the bound must not be."""
    short = method(1, PROBLEM, gamma=0.1, truncation=power(1.0, 0.5))
    two = method(1, PROBLEM, gamma=0.1, truncation=2.0)
    assert (short.terms["second_moment"] > 0).all()
    assert short.terms["second_moment"] == pytest.approx(two.terms["second_moment"])


@pytest.mark.parametrize("method", METHODS)
def test_monotone_in_the_problem(method: Callable[..., Bound]) -> None:
    def total(problem: Assumptions) -> float:
        return float(
            method(100, problem, gamma=power(0.1, -0.5), truncation=power(2.0, 0.5)).total[0]
        )

    base = total(PROBLEM)
    c = PROBLEM.constants
    assert total(Assumptions(c, G=1.6, L=0.7, gap=2.0)) > base
    assert total(Assumptions(c, G=1.5, L=0.8, gap=2.0)) > base
    assert total(Assumptions(c, G=1.5, L=0.7, gap=2.1)) > base
    assert total(Assumptions(Constants(2, c1=5.0, c2=60.0, c3=900.0), G=1.5, L=0.7, gap=2.0)) > base
    assert total(Assumptions(Constants(2, c1=4.0, c2=61.0, c3=900.0), G=1.5, L=0.7, gap=2.0)) > base


def test_limits() -> None:
    """No bias and no variance: only the initial gap; long chains: no bias."""
    free = Assumptions(Constants(1, c1=0.0, c2=0.0, c3=0.0), G=1.0, L=1.0, gap=3.0)
    b = bounds.general([1, 9], free, gamma=0.5, truncation=2.0)
    assert b.total == pytest.approx([2 * 3 / (0.5 * 2), 2 * 3 / (0.5 * 10)])
    long = bounds.general(10, PROBLEM, gamma=0.5, truncation=1e12)
    assert long.terms["bias"] < 1e-9
    # constant steps never change, and without momentum b3 = b4 = 0
    steady = bounds.amsgrad(10, PROBLEM, gamma=0.5, truncation=2.0)
    assert (steady.terms["step_change"] == 0).all()
    still = bounds.amsgrad(10, PROBLEM, gamma=power(0.5, -0.5), truncation=2.0, rho1=0.0)
    assert (still.terms["momentum"] == 0).all()
    assert (still.terms["step_change"] == 0).all()
    # with a constant T the bound levels off at 2 c1 G²/T
    floor = bounds.general(10**12, PROBLEM, gamma=power(1.0, -0.5), truncation=constant(8.0))
    assert floor.total == pytest.approx(2 * 4.0 * 1.5**2 / 8, rel=2e-3)


def test_rounding_does_not_make_a_sequence_wrong() -> None:
    """One unit in the last place up or down is neither a rise nor a fall."""

    def wobble(value: float) -> Callable[[int], float]:
        return lambda n: math.nextafter(value, math.inf * (-1) ** n)

    for size in (1e-6, 1.0, 1e6):
        rough = bounds.amsgrad(
            4, PROBLEM, gamma=wobble(size), truncation=wobble(9e6), clip=wobble(size)
        )
        assert np.isfinite(rough.total).all()
    above = math.nextafter(2.0, 3.0)
    b = bounds.general(2, PROBLEM, gamma=1.0, truncation=1.0, lower=above, upper=2.0)
    assert np.isfinite(b.total).all()


def test_amsgrad_uses_the_coefficients_of_its_first_step() -> None:
    b = bounds.amsgrad(3, PROBLEM, gamma=power(0.3, -0.5), truncation=power(5.0, 0.5), rho1=0.8)
    coefficients = amsgrad_coefficients(PROBLEM, gamma_1=0.3, truncation_1=5.0, rho1=0.8)
    assert b.terms["constant"] * b.weight == pytest.approx(coefficients.b0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.general(0, PROBLEM, gamma=1.0, truncation=2.0), "N must be .* got 0"),
        (
            lambda: bounds.general(10**19, PROBLEM, gamma=1.0, truncation=2.0),
            "N must be an integer from 1 to 1000000000000000000, got 10000000000000000000",
        ),
        (lambda: bounds.general([], PROBLEM, gamma=1.0, truncation=2.0), "N must hold"),
        (lambda: bounds.general(3, PROBLEM, gamma=-1.0, truncation=2.0), "gamma must be positive"),
        (
            lambda: bounds.general(3, PROBLEM, gamma=lambda n: 3.0 - n, truncation=2.0),
            "gamma must be positive .* got 0.0 at n = 3",
        ),
        (
            lambda: bounds.general(3, PROBLEM, gamma=1.0, truncation=0.5),
            "truncation must be ≥ 1, got 0.5 at n = 1",
        ),
        (
            lambda: bounds.general(3, PROBLEM, gamma=1.0, truncation=lambda n: 4.0 / n**2),
            "truncation must be ≥ 1, got 0.444444 at n = 3",
        ),
        (
            lambda: bounds.general(3, PROBLEM, gamma=1.0, truncation=2.0, lower=lambda n: n / 2),
            "got lower=1.5 and upper=1 at n = 3",
        ),
        (
            lambda: bounds.general(3, PROBLEM, gamma=1.0, truncation=2.0, lower=2.0),
            "lower must not exceed upper, got lower=2 and upper=1",
        ),
        (
            lambda: bounds.adagrad(3, PROBLEM, gamma=1.0, truncation=2.0, epsilon=0.0),
            "epsilon must be positive",
        ),
        (
            lambda: bounds.adagrad(3, PROBLEM, gamma=1.0, truncation=2.0, clip=math.nan),
            "finite.* got nan",
        ),
        (
            lambda: bounds.amsgrad(3, PROBLEM, gamma=1.0, truncation=2.0, rho2=1.0),
            r"rho2 must be in \[0, 1\), got 1.0",
        ),
        (
            lambda: bounds.amsgrad(3, PROBLEM, gamma=1.0, truncation=2.0, rho1=-0.5),
            r"rho1 must be in \[0, 1\), got -0.5",
        ),
        (
            lambda: bounds.amsgrad(3, PROBLEM, gamma=1.0, truncation=2.0, delta=0.0),
            "delta must be positive, got 0.0",
        ),
        (
            lambda: bounds.amsgrad(3, PROBLEM, gamma=power(1.0, 0.5), truncation=2.0),
            "gamma must be non-increasing, got 1 at n = 1 and then 1.41421",
        ),
        (
            lambda: bounds.amsgrad(3, PROBLEM, gamma=1.0, truncation=power(9.0, -0.5)),
            "truncation must be non-decreasing",
        ),
        (
            lambda: bounds.amsgrad(3, PROBLEM, gamma=1.0, truncation=2.0, clip=power(1.0, -0.5)),
            "clip must be non-decreasing",
        ),
        (
            lambda: bounds.amsgrad(
                3, PROBLEM, gamma=1.0, truncation=2.0, clip=lambda n: 2.0 + (-1.0) ** n
            ),
            "clip must be non-decreasing, got 3 at n = 2 and then 1",
        ),
        (
            lambda: bounds.amsgrad(3, PROBLEM, gamma=lambda n: 2.0 - (-1.0) ** n, truncation=2.0),
            "gamma must be non-increasing, got 1 at n = 2 and then 3",
        ),
        (
            lambda: bounds.amsgrad(3, PROBLEM, gamma=1.0, truncation=lambda n: 3.0 + (-1.0) ** n),
            "truncation must be non-decreasing, got 4 at n = 2 and then 2",
        ),
        (
            lambda: bounds.general(10**9, PROBLEM, gamma=inverse, truncation=2.0),
            "N=1000000000 is too many terms for a schedule that is a function",
        ),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
