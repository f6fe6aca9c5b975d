"""c1, c2, c3 and the general bounds: hand-computed values, limits, and exact enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest
from numpy.typing import NDArray

from mlmcgrad.theory import Constants, Ergodicity, bias_bound, constants, ergodicity, moment_bound
from mlmcgrad.theory.estimator_constants import LevelLaw, delta, geometric

CHAIN = Ergodicity(zeta=1.0, alpha=0.5, beta=0.25)  # ζ/(1−α) = 2


def test_hand_computed_values() -> None:
    c = constants(4, CHAIN)
    assert c.c1 == 16.0  # 4 · 2 · √4
    assert c.c2 == pytest.approx(11298 / math.log(2), rel=1e-15)  # 34 + 256 (24 + 20)
    root2, root_pi = Decimal("1.4142135623730950488"), Decimal("1.7724538509055160273")
    # 3Γ(3/2)(1+2√2)/β^{3/2} = 12√π(1+2√2); 9·2³ = 72; 512·4^{3/2} = 4096; 4√2/(√2−1) = 8+4√2
    inner = 65 + 4096 * (12 * root_pi * (1 + 2 * root2) + 72)
    assert c.c3 == pytest.approx(float((8 + 4 * root2) * inner), rel=1e-14)


def test_limits_of_perfect_mixing() -> None:
    c = constants(3, Ergodicity(zeta=0.0, alpha=0.0, beta=1e12))
    assert c.c1 == 0.0
    assert c.c2 == pytest.approx(34 / math.log(2), rel=1e-8)
    assert c.c3 == pytest.approx(65 * (8 + 4 * math.sqrt(2)), rel=1e-8)


@pytest.mark.parametrize(
    "worse", [(4, Ergodicity(1.1, 0.5, 0.25)), (4, Ergodicity(1.0, 0.6, 0.25)), (5, CHAIN)]
)
def test_constants_grow_with_zeta_alpha_d(worse: tuple[int, Ergodicity]) -> None:
    low, high = constants(4, CHAIN), constants(*worse)
    assert high.c1 > low.c1
    assert high.c2 > low.c2
    assert high.c3 > low.c3


def test_concentration_enters_the_moments_only() -> None:
    low, high = constants(4, Ergodicity(1.0, 0.5, 0.5)), constants(4, CHAIN)
    assert high.c1 == low.c1
    assert high.c2 > low.c2
    assert high.c3 > low.c3


@pytest.mark.parametrize("truncation", [2.0, 3.0, 4.0, 7.9, 64.0, 1000.0, 2.0**30])
def test_proposition_1_follows_from_the_general_bound(truncation: float) -> None:
    for chain in (CHAIN, Ergodicity(3.0, 0.9, 0.01), Ergodicity(0.0, 0.0, 2.0)):
        c = constants(7, chain)
        second, third = (moment_bound(p, 7, chain, truncation=truncation) for p in (2, 3))
        assert second <= c.c2 * math.log(truncation) * (1 + 1e-12)
        assert third <= c.c3 * math.sqrt(truncation)
        assert bias_bound(7, chain, truncation=truncation) <= c.c1 / truncation


def test_general_bound_by_hand() -> None:
    # p = 2, d = 1, one level: 2 {17 + 32·2·Γ(1)·4·Δ(1,1) + 32·4·Δ(1,2)/2}, Δ(1,1) = 3, Δ(1,2) = 5
    assert moment_bound(2, 1, CHAIN, truncation=2.0) == pytest.approx(2 * (17 + 768 + 320))
    assert moment_bound(2, 1, CHAIN, truncation=2.0, G=3.0) == pytest.approx(18 * (17 + 768 + 320))
    assert moment_bound(4, 1, CHAIN, truncation=1.0) == 8 * (1 + 256)  # no level fits
    assert delta(2, 2, [1.0, 5 / 3, 25 / 6]) == pytest.approx((25 / 24) ** 2 + (25 / 6) ** 2)
    # the same law as a function and as a list
    tabulated = [2.0**-k for k in range(1, 8)]
    assert moment_bound(3, 2, CHAIN, truncation=40.0, pmf=tabulated) == moment_bound(
        3, 2, CHAIN, truncation=40.0, pmf=geometric
    )
    # ⌊τ(0)⌋ = ⌊5/2⌋ = 2 (erratum 7): with no level inside T the estimate is H^{(2)}
    assert bias_bound(1, CHAIN, truncation=4.0, pmf=[0.2] * 5) == 2.0
    assert bias_bound(1, CHAIN, truncation=5.0, pmf=[0.2] * 5) == 0.8
    assert bias_bound(1, CHAIN, truncation=48.5, pmf=[1 / 49] * 49) == 4 / 24
    assert bias_bound(1, CHAIN, truncation=49.0, pmf=[1 / 49] * 49) == 4 / 49


def test_general_bound_by_hand_in_four_dimensions() -> None:
    """p = 4, ζ/(1−α) = 3, β = ½, τ = (1, 2): Δ(1, 2) = 5 and Δ(1, 4) = 17."""
    chain = Ergodicity(zeta=1.5, alpha=0.5, beta=0.5)
    noise = 8192 * 4 * 1 * (4 / 0.5) ** 2 * (2 * 5)  # 16⁴/8 · p Γ(2) (d/β)² τ(1) Δ(1, 2)
    drift = 8192 * (3 * 2) ** 4 * 17 / 2
    expected = 8 * 3**4 * (257 + noise + drift)
    assert moment_bound(4, 4, chain, truncation=2.0, G=3.0) == pytest.approx(expected)
    assert bias_bound(4, chain, truncation=2.0, G=3.0) == 18.0  # 2 · 3 · 3 · √4 / 2


def test_laws_at_the_edge() -> None:
    """One level for sure; levels of probability 0 at the end; a sum that rounding left below 1."""
    assert _bias([1.0]) == 4.0  # τ(0) = τ(1) = 1
    assert _bias([1.0, 0.0]) == 4.0
    assert _bias([0.5, 0.5, 0.0, 0.0]) == 2.0
    assert sum([0.1] * 10) < 1.0
    assert bias_bound(1, CHAIN, truncation=20.0, pmf=[0.1] * 10) == 0.4


def geometric_60(k: int) -> float:
    return 0.6 * 0.4 ** (k - 1)


P_FAST, P_SLOW = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([[0.98, 0.02], [0.03, 0.97]])


@pytest.mark.parametrize("P", [P_FAST, P_SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize("pmf", [geometric, geometric_60], ids=["half", "0.6"])
@pytest.mark.parametrize("truncation", [1.0, 2.0, 3.99, 4.0, 8.0, 11.0])
@pytest.mark.parametrize("first_is_fixed", [True, False])
def test_bounds_dominate_exact_enumeration(
    P: NDArray[np.float64], pmf: Callable[[int], float], truncation: float, first_is_fixed: bool
) -> None:
    """Bias, second and third moment of Ĥ by enumeration of all paths and levels."""
    H = np.array([[0.6, 0.8], [-1.0, 0.0]])  # (states, d), ‖H‖ = 1
    chain = ergodicity(P)
    law = np.array(chain.stationary)
    tau = [1.0] + [1 / pmf(k) for k in range(1, 6)]
    kappa = max(k for k in range(6) if k == 0 or math.floor(tau[k] + 1e-9) <= truncation)
    size = [math.floor(t + 1e-9) for t in tau]
    paths = np.array(list(itertools.product(range(2), repeat=size[kappa])))
    for start in range(2):
        first = np.eye(2)[start] if first_is_fixed else P[start]
        probability = first[paths[:, 0]] * np.prod(P[paths[:, :-1], paths[:, 1:]], axis=1)
        values = H[paths]  # (paths, steps, d)
        mean = np.cumsum(values, axis=1) / np.arange(1, size[kappa] + 1)[None, :, None]
        estimates = [values[:, 0]]  # the levels that do not fit
        masses = [1 - sum(pmf(k) for k in range(1, kappa + 1))]
        for k in range(1, kappa + 1):
            jump = tau[k] * (mean[:, size[k] - 1] - mean[:, size[k - 1] - 1])
            estimates.append(values[:, 0] + jump)
            masses.append(pmf(k))
        expectation = sum(m * probability @ e for m, e in zip(masses, estimates, strict=True))
        assert np.allclose(expectation, probability @ mean[:, -1], atol=1e-12)  # Lemma "trunc"
        bias = np.linalg.norm(expectation - law @ H)
        moments = {
            p: sum(
                m * probability @ np.linalg.norm(e, axis=1) ** p
                for m, e in zip(masses, estimates, strict=True)
            )
            for p in (2, 3)
        }
        assert bias <= bias_bound(2, chain, truncation=truncation, pmf=pmf)
        assert moments[2] <= moment_bound(2, 2, chain, truncation=truncation, pmf=pmf)
        assert moments[3] <= moment_bound(3, 2, chain, truncation=truncation, pmf=pmf)
        if pmf is geometric:
            c = constants(2, chain)
            assert bias <= c.c1 / truncation
            assert moments[2] <= c.c2 * math.log(max(truncation, 2.0))  # erratum 8
            assert moments[3] <= c.c3 * math.sqrt(truncation)


def test_bias_bound_is_not_far_from_the_truth() -> None:
    """A two-state chain from its rare state: Σ d(i)/T of the bound's 2Σ d(i)/T is reached."""
    chain = ergodicity(P_SLOW)
    law = np.array(chain.stationary)
    rare = int(np.argmin(law))
    H = np.array([1.0, -1.0])
    power, total, steps = np.eye(2), 0.0, 4096
    for _ in range(steps):
        total += float(power[rare] @ H)
        power = power @ P_SLOW
    bias = abs(total / steps - law @ H)
    assert 0.9 < bias / bias_bound(1, chain, truncation=float(steps)) <= 1


def _bias(pmf: LevelLaw) -> float:
    return bias_bound(1, CHAIN, truncation=9.0, pmf=pmf)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: constants(0, CHAIN), "d must be an integer ≥ 1, got 0"),
        (lambda: constants("4", CHAIN), "d must be an integer ≥ 1, got '4'"),  # type: ignore[arg-type]
        (lambda: Constants(0, c1=1.0, c2=1.0, c3=1.0), "d must be an integer ≥ 1, got 0"),
        (lambda: bias_bound(0, CHAIN, truncation=4.0), "d must be an integer ≥ 1, got 0"),
        (lambda: moment_bound(2, 0, CHAIN, truncation=4.0), "d must be an integer ≥ 1, got 0"),
        (lambda: _bias([0.0, 1.0]), "non-increasing .* got 0.0 at level 1"),
        (lambda: _bias([1.5]), "got 1.5 at level 1 after the mass 0"),
        (lambda: moment_bound(1.5, 1, CHAIN, truncation=4.0), "p must be ≥ 2, got 1.5"),
        (lambda: moment_bound(2, 1, CHAIN, truncation=math.nan), "truncation must be a finite"),
        (lambda: moment_bound(2, 1, CHAIN, truncation=4.0, G=-1.0), "G must be positive, got -1.0"),
        (lambda: _bias([0.2, 0.8]), "non-increasing .* got 0.8 at level 2"),
        (lambda: _bias([0.7, 0.7]), "got 0.7 at level 2 after the mass 0.7"),
        (lambda: _bias([0.5, 0.25]), "sums to 0.75 over its 2 levels"),
        (lambda: _bias([]), "sums to 0 over its 0 levels"),
        (lambda: _bias(lambda k: 0.3), "after the mass 0.9"),
        (lambda: Constants(1, c1=-1.0, c2=0.0, c3=0.0), "c1 must be ≥ 0, got -1.0"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
