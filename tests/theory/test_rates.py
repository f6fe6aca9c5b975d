"""Rates: the paper's special cases, the errata, and slopes of the evaluated bounds."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mlmcgrad import theory
from mlmcgrad.schedules import Power, power
from mlmcgrad.theory import Assumptions, Bound, Constants, Rate, bounds, rates

Rates = Callable[[float, float], Rate]


@pytest.mark.parametrize(
    ("method", "alphas"),
    [
        (rates.general, [0.5, 0.7, 1.0, 3.0]),
        (rates.adagrad, [0.5, 0.7, 1.0]),
        (rates.amsgrad, [0.5, 0.7, 1.0, 3.0]),
    ],
)
def test_square_root_steps_reach_the_standard_rate(method: Rates, alphas: list[float]) -> None:
    """γ = 1/2 and α ≥ 1/2 (at most 1 for Adagrad): (log N)²/√N, from the second moment."""
    for alpha in alphas:
        rate = method(0.5, alpha)
        assert (rate.exponent, rate.log_power) == (-0.5, 2.0)
        assert "second_moment" in rate.dominant
        assert "bias" not in rate.dominant


@pytest.mark.parametrize("method", [rates.general, rates.adagrad, rates.amsgrad])
@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.4])
def test_short_truncations_are_dominated_by_the_bias(method: Rates, alpha: float) -> None:
    rate = method(0.5, alpha)
    assert rate.exponent == pytest.approx(-alpha)
    assert rate.log_power == 0.0
    assert rate.dominant == ("bias",)


@pytest.mark.parametrize("method", [rates.general, rates.adagrad, rates.amsgrad])
def test_constant_truncation_levels_off_at_its_bias(method: Rates) -> None:
    rate = method(0.5, 0.0)
    assert (rate.exponent, rate.log_power) == (0.0, 0.0)
    assert rate.dominant == ("bias",)
    assert rate.terms["second_moment"] == (-0.5, 1.0)  # log T_n no longer grows: Ψ for Φ


def test_other_step_exponents() -> None:
    assert (rates.general(0.75, 1.0).exponent, rates.general(0.75, 1.0).log_power) == (-0.25, 0.0)
    assert rates.general(0.75, 1.0).dominant == ("initial", "bias", "second_moment")
    rate = rates.general(0.25, 1.0)  # N^{-3/4} N^{1/2} log N
    assert (rate.exponent, rate.log_power) == (-0.25, 1.0)
    assert rate.dominant == ("second_moment",)
    rate = rates.amsgrad(0.75, 1.0)  # the change of the steps leaves its log N
    assert (rate.exponent, rate.log_power) == (-0.25, 1.0)
    assert rate.dominant == ("step_change",)
    assert "step_change" not in rates.amsgrad(0.0, 1.0).terms
    rate = rates.amsgrad(0.5, 1.0, clip=0.1)
    assert (rate.exponent, rate.log_power) == (-0.4, 2.0)
    assert rates.adagrad(0.5, 2.0).exponent == 0.0  # √T_n/n is no longer summable enough
    # no step exponent beats 1/2
    best = min(rates.general(g, 1.0).exponent for g in np.linspace(0.05, 0.95, 19))
    assert best == pytest.approx(-0.5)


def test_rounded_sums_count_as_equal_exponents() -> None:
    assert rates.general(0.3, 0.7).terms["bias"] == (-0.7, 1.0)  # 0.7 + 0.3 = 1
    assert rates.general(0.1 + 0.2, 0.7).terms["bias"][1] == 1.0


def test_erratum_5_adagrad_with_growing_epsilon() -> None:
    """ε̲_n ∝ n^{−M} whatever ε̄ ≥ 0, so the printed leading exponent is too good by ε̄."""
    corrected = rates.adagrad(0.5, 0.8, clip=0.1, epsilon=0.1)
    printed = rates.adagrad(0.5, 0.8, clip=0.1, epsilon=0.1, as_printed=True)
    assert corrected.exponent - printed.exponent == pytest.approx(0.1)
    assert corrected.terms["initial"][0] == pytest.approx(-0.4)
    assert printed.terms["initial"][0] == pytest.approx(-0.5)
    same = rates.adagrad(0.5, 0.8, clip=0.1)
    assert same == rates.adagrad(0.5, 0.8, clip=0.1, as_printed=True)
    # the printed condition γ + M < 1 + ε̄ lets through what the corrected one refuses
    loose = rates.adagrad(0.8, 1.0, clip=0.3, epsilon=0.2, as_printed=True)
    assert loose.terms["initial"][0] == pytest.approx(-0.1)
    with pytest.raises(ValueError, match=r"gamma \+ clip must be less than 1, got 1.1"):
        rates.adagrad(0.8, 1.0, clip=0.3, epsilon=0.2)
    assert slope(bounds.adagrad, "weight", clip=power(1.0, 0.1), epsilon=power(1.0, 0.1)) == (
        pytest.approx(1 - 0.5 - 0.1, abs=0.01)
    )


def test_erratum_4_lower_bound_decays() -> None:
    rate = rates.general(0.5, 0.8, lower=0.2)
    assert rate == rates.general(0.5, 0.8, lower=0.2, as_printed=True)
    decaying = slope(bounds.general, "initial", lower=power(1.0, -0.2))
    growing = slope(bounds.general, "initial", lower=power(1.0, 0.2), upper=power(1.0, 0.2))
    assert decaying == pytest.approx(rate.terms["initial"][0], abs=0.01)  # −(1−γ−λ̲)
    assert growing == pytest.approx(-(1 - 0.5 + 0.2), abs=0.01)  # the printed n^{+λ̲}


PROBLEM = Assumptions(Constants(d=2, c1=1.0, c2=1.0, c3=1.0), G=1.0, L=1.0, gap=1.0)
NS = [10**11, 10**13]


def measured(term: NDArray[np.float64]) -> float:
    return math.log(term[1] / term[0]) / math.log(NS[1] / NS[0])


def predicted(exponent: float, log_power: float) -> float:
    logs = math.log(math.log(NS[1]) / math.log(NS[0]))
    return exponent + log_power * logs / math.log(NS[1] / NS[0])


def slope(method: Callable[..., Bound], name: str, **schedules: Power) -> float:
    sequences = {"gamma": power(1.0, -0.5), "truncation": power(1.0, 0.8), **schedules}
    bound = method(NS, PROBLEM, **sequences)
    return measured(bound.weight if name == "weight" else bound.terms[name])


CASES: list[tuple[Callable[..., Bound], dict[str, Power], Rate]] = []
for _gamma in (0.3, 0.5, 0.7):
    for _alpha in (0.25, 0.5, 1.0):
        CASES += [
            (
                bounds.general,
                {"gamma": power(1.0, -_gamma), "truncation": power(1.0, _alpha)},
                rates.general(_gamma, _alpha),
            ),
            (
                bounds.adagrad,
                {"gamma": power(1.0, -_gamma), "truncation": power(1.0, _alpha)},
                rates.adagrad(_gamma, _alpha),
            ),
            (
                bounds.amsgrad,
                {"gamma": power(1.0, -_gamma), "truncation": power(1.0, _alpha)},
                rates.amsgrad(_gamma, _alpha),
            ),
        ]
CASES += [
    (
        bounds.general,
        {
            "gamma": power(1.0, -0.5),
            "truncation": power(1.0, 0.5),
            "lower": power(1.0, -0.2),
            "upper": power(1.0, 0.1),
        },
        rates.general(0.5, 0.5, lower=0.2, upper=0.1),
    ),
    (
        bounds.adagrad,
        {
            "gamma": power(1.0, -0.6),
            "truncation": power(1.0, 0.7),
            "clip": power(2.0, 0.15),
            "epsilon": power(1.0, 0.1),
        },
        rates.adagrad(0.6, 0.7, clip=0.15, epsilon=0.1),
    ),
    (
        bounds.adagrad,
        {
            "gamma": power(1.0, -0.3),
            "truncation": power(1.0, 0.2),
            "clip": power(2.0, 0.15),
            "epsilon": power(1.0, 0.1),
        },
        rates.adagrad(0.3, 0.2, clip=0.15, epsilon=0.1),  # a bias that grows, N^{1 − 0.4}
    ),
    (
        bounds.amsgrad,
        {"gamma": power(1.0, -0.5), "truncation": power(1.0, 0.5), "clip": power(1.0, 0.3)},
        rates.amsgrad(0.5, 0.5, clip=0.3),
    ),
]


@pytest.mark.parametrize(("method", "schedules", "rate"), CASES)
def test_rates_are_the_slopes_of_the_bounds(
    method: Callable[..., Bound], schedules: dict[str, Power], rate: Rate
) -> None:
    """log-ratio of each term between two large N against exponent and log power."""
    bound = method(NS, PROBLEM, **schedules)
    assert bound.terms.keys() == rate.terms.keys()
    for name, term in bound.terms.items():
        assert measured(term) == pytest.approx(predicted(*rate.terms[name]), abs=0.02)
    # terms of a smaller order, still visible at these N, only make the sum fall faster
    assert measured(bound.total) <= predicted(rate.exponent, rate.log_power) + 0.02


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_rate_is_the_slope_of_the_whole_bound(alpha: float) -> None:
    rate = rates.general(0.5, alpha)
    bound = bounds.general(NS, PROBLEM, gamma=power(1.0, -0.5), truncation=power(4.0, alpha))
    assert measured(bound.total) == pytest.approx(
        predicted(rate.exponent, rate.log_power), abs=0.03
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rates.general(-0.1, 0.5), "gamma must be ≥ 0, got -0.1"),
        (lambda: rates.general(0.5, -0.5), "alpha must be ≥ 0, got -0.5"),
        (lambda: rates.general(0.5, 0.5, lower=-0.1), "lower must be ≥ 0"),
        (lambda: rates.general(0.5, 0.5, upper=-0.1), "upper must be ≥ 0"),
        (lambda: rates.adagrad(-0.1, 0.5), "gamma must be ≥ 0"),
        (lambda: rates.adagrad(0.5, -0.5), "alpha must be ≥ 0"),
        (lambda: rates.adagrad(0.5, 0.5, clip=-0.1), "clip must be ≥ 0"),
        (lambda: rates.adagrad(0.5, 0.5, epsilon=-0.1), "epsilon must be ≥ 0"),
        (lambda: rates.amsgrad(0.5, 0.5, clip=-0.1), "clip must be ≥ 0"),
        (lambda: rates.general(0.6, 0.5, lower=0.5), r"gamma \+ lower must .* 1, got 1.1"),
        (lambda: rates.general(1.0, 0.5), r"gamma \+ lower must be less than 1, got 1"),
        (lambda: rates.adagrad(0.5, 0.5, clip=0.5), r"gamma \+ clip must be less than 1"),
        (lambda: rates.amsgrad(0.5, 0.5, clip=0.5), r"gamma \+ clip must be less than 1"),
        (lambda: rates.amsgrad(math.inf, 0.5), "gamma must be a finite number, got inf"),
        (lambda: rates.general(0.5, 0.0, as_printed=True), "alpha must be positive"),
    ],
)
def test_constants_outside_their_range_are_refused(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_theory_imports_no_sampling_code() -> None:
    core = ("mlmcgrad.schedules", "mlmcgrad._checks", "mlmcgrad.schedules")
    allowed = ("mlmcgrad.theory", *core, "numpy", "__future__")
    standard = {"bisect", "collections.abc", "dataclasses", "itertools", "math", "typing"}
    for path in Path(theory.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name in standard or name.startswith(allowed), (path.name, name)
