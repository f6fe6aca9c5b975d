"""Plans: the bound is met, no smaller N would do, the costs are the direct sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlmcgrad.schedules import power
from mlmcgrad.theory import (
    Assumptions,
    Bound,
    Constants,
    Method,
    Recommendation,
    UnreachableError,
    average_cost,
    bounds,
    constants,
    ergodicity,
    expected_cost,
    rates,
    recommend,
)
from mlmcgrad.theory.recommendation import _best_step

EASY = Assumptions(Constants(d=1, c1=1.0, c2=1.0, c3=0.1), G=1.0, L=1.0, gap=1.0)
PLAN: Callable[..., Recommendation] = recommend


@pytest.mark.parametrize(
    ("method", "bound", "settings"),
    [
        ("general", bounds.general, {"lower": 0.5, "upper": 2.0}),
        ("adagrad", bounds.adagrad, {"clip": 0.5}),
        ("amsgrad", bounds.amsgrad, {"rho1": 0.5, "delta": 0.5}),
    ],
)
def test_plan_is_met_and_minimal(
    method: Method, bound: Callable[..., Bound], settings: dict[str, float]
) -> None:
    plan = PLAN(0.5, EASY, method, alphas=(0.5, 1.0), scales=(1.0, 16.0), **settings)
    exact = bound(plan.iterations, EASY, gamma=plan.gamma, truncation=plan.truncation, **settings)
    assert plan.bound == pytest.approx(exact.total[0], rel=1e-7)
    assert plan.bound <= 0.5
    assert plan.terms == pytest.approx({k: v[0] for k, v in exact.terms.items()}, rel=1e-6)
    fewer = min(
        bound(
            plan.iterations - 1, EASY, gamma=power(c, -0.5), truncation=plan.truncation, **settings
        ).total[0]
        for c in plan.gamma.c * np.linspace(0.8, 1.25, 31)
    )
    assert fewer > 0.5 * (1 - 1e-7)
    assert plan.rate == getattr(rates, method)(0.5, plan.truncation.exponent)
    assert plan.expected_cost == expected_cost(plan.iterations, plan.truncation)
    assert plan.average_cost == average_cost(plan.iterations, plan.truncation)
    assert plan.longest_chain <= plan.truncation(plan.iterations) < 2 * plan.longest_chain
    assert plan.saving == plan.average_cost / plan.expected_cost > 1


def test_plan_is_the_cheapest_candidate() -> None:
    plan = recommend(0.3, EASY)
    for alpha in (0.5, 0.75, 1.0):
        for scale in (1.0, 4.0, 16.0, 64.0):
            candidate = recommend(0.3, EASY, alphas=(alpha,), scales=(scale,))
            assert plan.expected_cost <= candidate.expected_cost


def test_an_accuracy_that_few_iterations_have() -> None:
    """The best bound after one iteration is 3.447, after two less: 3.5 takes one, 3.44 two."""
    one, two = (recommend(a, EASY, alphas=(0.5,), scales=(1.0,)) for a in (3.5, 3.44))
    assert (one.iterations, two.iterations) == (1, 2)
    assert one.bound == pytest.approx(3.4468, abs=1e-4)
    assert two.bound < 3.44
    assert (one.longest_chain, two.longest_chain) == (1, 1)  # T_n = √n


def test_a_candidate_that_fails_does_not_end_the_search() -> None:
    """T_n = √n needs 2208 iterations for 0.3, T_n = 4√n 814."""
    plan = recommend(0.3, EASY, alphas=(0.5,), scales=(1.0, 4.0), max_iterations=1000)
    assert plan.truncation == power(4.0, 0.5)
    assert plan.iterations == 814
    with pytest.raises(UnreachableError, match=r"smallest bound is 0\.303859"):  # 0.405888 for √n
        recommend(1e-6, EASY, alphas=(0.5,), scales=(64.0, 1.0), max_iterations=1000)


@pytest.mark.parametrize("method", ["general", "adagrad"])
@pytest.mark.parametrize(("gap", "c2"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_bound_without_a_best_step(method: Method, gap: float, c2: float) -> None:
    """A/c + B + D·c with A = 0 or D = 0: the smaller, or the larger, the better. A plan exists."""
    problem = Assumptions(Constants(d=1, c1=1.0, c2=c2, c3=0.1), G=1.0, L=1.0, gap=gap)
    plan = recommend(0.5, problem, method, alphas=(0.5,), scales=(4.0,))
    assert plan.bound <= 0.5
    assert (plan.gamma.c < 1e-6) == (gap < c2)
    assert (plan.gamma.c > 1e6) == (gap > c2)


@pytest.mark.parametrize("constant", [0.1, 0.3, 0.7, 1.1, 1 / 3])
def test_a_term_of_zero_does_not_decide_by_its_rounding(constant: float) -> None:
    """A/c + B and B + D·c for several B, which round differently."""
    assert _best_step(lambda c: 1.0 / c + constant)[1] > 1e6
    assert _best_step(lambda c: constant + c)[1] < 1e-6
    assert _best_step(lambda c: 4.0 / c + constant + c)[1] == pytest.approx(2.0)


def test_the_search_ends_by_itself() -> None:
    with pytest.raises(UnreachableError, match="max_iterations=1000000000000000: the smallest"):
        recommend(1e-9, EASY, alphas=(0.5,), scales=(1.0,))


def test_finer_accuracy_and_slower_chains_cost_more() -> None:
    plans = [recommend(a, EASY, alphas=(0.5,), scales=(1.0,)) for a in (1.0, 0.3, 0.1)]
    assert plans == sorted(plans, key=lambda plan: plan.expected_cost)
    slow, fast = (
        Assumptions(constants(1, ergodicity([[1 - p, p], [p, 1 - p]])), G=1.0, L=1.0, gap=1.0)
        for p in (0.05, 0.45)
    )
    assert recommend(1.0, slow).iterations > recommend(1.0, fast).iterations


def test_unreachable_accuracy_is_said() -> None:
    with pytest.raises(
        UnreachableError,
        match=r"accuracy=1e-06 is not reached within max_iterations=1000: .* bound is",
    ):
        recommend(1e-6, EASY, max_iterations=1000, alphas=(0.5,), scales=(1.0,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recommend(0.0, EASY), "accuracy must be positive, got 0.0"),
        (lambda: PLAN(0.1, EASY, "sgd"), "method must be one of .* got 'sgd'"),
        (lambda: recommend(0.1, EASY, alphas=()), "alphas and scales must not be empty"),
        (lambda: recommend(0.1, EASY, scales=(0.5,)), "truncation must be ≥ 1, got 0.5"),
        (lambda: recommend(0.1, EASY, alphas=(-0.5,)), "alphas must be positive, got -0.5"),
        (lambda: recommend(0.1, EASY, max_iterations=0), "max_iterations must be .* got 0"),
        (lambda: recommend(0.1, EASY, "amsgrad", rho1=1.0), r"rho1 must be in \[0, 1\)"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call()
    assert not isinstance(raised.value, UnreachableError)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="rho1"):
        recommend(0.1, EASY, "general", rho1=0.9)
