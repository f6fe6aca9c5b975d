"""b0..b4 by hand, and the lemma behind b3: printed and corrected."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest

from mlmcgrad.theory import Assumptions, Constants, amsgrad_coefficients

PROBLEM = Assumptions(Constants(d=4, c1=5.0, c2=7.0, c3=1.0), G=2.0, L=3.0, gap=1.0)


def test_hand_computed_values() -> None:
    b = amsgrad_coefficients(PROBLEM, gamma_1=1.0, truncation_1=2.0, rho1=0.5, delta=4.0)
    assert b.b0 == pytest.approx(2 + 12 + 21 * math.log(2), rel=1e-15)
    assert b.b1 == 10.0  # 5 · 4/2
    assert b.b2 == 80.5  # (7/8)(1 + 6 + 16) · 4
    assert b.b3 == 80.5  # (7/16)(9 + 6 + 8) · 4 · 2
    assert b.b4 == 1.0  # 4 · 0.5 · 2/4
    printed = amsgrad_coefficients(
        PROBLEM, gamma_1=1.0, truncation_1=2.0, rho1=0.5, delta=4.0, as_printed=True
    )
    assert printed == replace(b, b3=40.25)


def test_second_set_of_hand_computed_values() -> None:
    problem = Assumptions(Constants(d=1, c1=2.0, c2=3.0, c3=0.0), G=1.0, L=2.0, gap=0.0)
    b = amsgrad_coefficients(problem, gamma_1=0.5, truncation_1=8.0, rho1=0.75, delta=0.25)
    assert b.b0 == pytest.approx(8 + 7 + 3 * 8 * 0.25 * 3 * math.log(2), rel=1e-15)
    assert b.b1 == 4.0
    assert b.b2 == pytest.approx(6 * 5.5)
    # c2ρ1²/(2δ(1−ρ1)) = 27/2; L² + 2L + δ(1−ρ1)G/ρ1 = 8 + 1/12; times 1/(1−ρ1) = 4
    assert b.b3 == pytest.approx(27 / 2 * (8 + 1 / 12) * 4)
    assert b.b4 == 6.0


def test_defaults_are_those_of_the_optimizer() -> None:
    plain = amsgrad_coefficients(PROBLEM, gamma_1=1.0, truncation_1=2.0)
    assert plain == amsgrad_coefficients(
        PROBLEM, gamma_1=1.0, truncation_1=2.0, rho1=0.9, delta=1.0, as_printed=False
    )


def test_short_first_truncation_counts_as_two() -> None:
    one, two = (
        amsgrad_coefficients(PROBLEM, gamma_1=1.0, truncation_1=t, rho1=0.5) for t in (1.0, 2.0)
    )
    assert one == two


def test_no_momentum_and_limits() -> None:
    b = amsgrad_coefficients(PROBLEM, gamma_1=1.0, truncation_1=2.0, rho1=0.0)
    assert b.b3 == 0.0
    assert b.b4 == 0.0
    tiny = amsgrad_coefficients(PROBLEM, gamma_1=1.0, truncation_1=2.0, rho1=1e-9)
    assert asdict(tiny) == pytest.approx(asdict(b), abs=1e-6)
    for name in ("b0", "b3", "b4"):
        grows = [
            getattr(amsgrad_coefficients(PROBLEM, gamma_1=1.0, truncation_1=2.0, rho1=r), name)
            for r in (0.1, 0.5, 0.9, 0.99)
        ]
        assert grows == sorted(grows)


@pytest.mark.parametrize("rho1", [0.3, 0.9])
def test_lemma_mn_amsgrad_needs_its_correction(rho1: float) -> None:
    """A constant estimate Ĥ = G: A3 holds with T = 2 and c2 = 1/log 2, yet m exceeds the print."""
    G, truncation = 2.0, 2.0
    c2 = 1 / math.log(truncation)
    assert c2 * G**2 * math.log(truncation) == pytest.approx(G**2)  # E‖Ĥ‖² at its bound
    momentum, violated = 0.0, []
    for n in range(1, 101):
        momentum = rho1 * momentum + (1 - rho1) * G  # m_{n−1}
        printed = c2 * (1 - rho1) * (1 - rho1**n) * G**2 * math.log(truncation)
        corrected = c2 * (1 - rho1**n) ** 2 * G**2 * math.log(truncation)
        violated.append(momentum**2 > printed * (1 + 1e-12))
        assert momentum**2 <= corrected * (1 + 1e-12)
        assert momentum**2 <= printed / (1 - rho1) * (1 + 1e-12)  # what b3 uses
    assert violated == [False] + [True] * 99


@pytest.mark.parametrize(
    ("name", "value"),
    [("rho1", 1.0), ("rho1", -0.1), ("delta", 0.0), ("gamma_1", -1.0), ("truncation_1", 0.0)],
)
def test_bad_input_is_refused(name: str, value: float) -> None:
    arguments = {"gamma_1": 1.0, "truncation_1": 2.0, "rho1": 0.5, "delta": 1.0, name: value}
    with pytest.raises(ValueError, match=f"{name} must be .* got {value}"):
        amsgrad_coefficients(
            PROBLEM,
            gamma_1=arguments["gamma_1"],
            truncation_1=arguments["truncation_1"],
            rho1=arguments["rho1"],
            delta=arguments["delta"],
        )


@pytest.mark.parametrize(("name", "value"), [("G", 0.0), ("L", -1.0), ("gap", -1e-9)])
def test_bad_problem_is_refused(name: str, value: float) -> None:
    numbers = {"G": 1.0, "L": 1.0, "gap": 1.0, name: value}
    with pytest.raises(ValueError, match=f"{name} must be .* got {value}"):
        Assumptions(PROBLEM.constants, **numbers)
