"""Certified ergodicity constants against exact distances, closed forms and enumerated tails."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from mlmcgrad.theory import Ergodicity, ergodicity
from mlmcgrad.theory import ergodicity_constants as certified
from mlmcgrad.theory.ergodicity_constants import transition_matrix

Matrix = NDArray[np.float64]


def distances(P: Matrix, law: Matrix, steps: int) -> tuple[Matrix, Matrix]:
    """d(i) and d̄(i) for i = 0 … steps."""
    power = np.eye(len(P))
    to_law, between = [], []
    for _ in range(steps + 1):
        to_law.append(0.5 * np.abs(power - law).sum(axis=1).max())
        between.append(0.5 * np.abs(power[:, None] - power[None]).sum(axis=2).max())
        power = power @ P
    return np.array(to_law), np.array(between)


@st.composite
def chains(draw: st.DrawFn) -> Matrix:
    n = draw(st.integers(2, 6))
    entry = st.integers(0, 4)
    rows = draw(st.lists(st.lists(entry, min_size=n, max_size=n), min_size=n, max_size=n))
    P = np.array(rows, dtype=float)
    assume((P.sum(axis=1) > 0).all())
    P /= P.sum(axis=1, keepdims=True)
    assume((np.linalg.matrix_power(P, n * n) > 0).all())  # irreducible and aperiodic
    return P


@settings(max_examples=150, deadline=None, derandomize=True)
@given(P=chains())
def test_bound_dominates_the_distance_at_every_time(P: Matrix) -> None:
    chain = ergodicity(P)
    assert chain.stationary is not None
    assert chain.mixing_time is not None
    law = np.array(chain.stationary)
    assert np.allclose(law @ P, law, atol=1e-13)
    to_law, between = distances(P, law, 500)
    bound = chain.zeta * chain.alpha ** np.arange(501)
    assert (to_law <= bound + 1e-12).all()
    # any valid pair has ζ/(1−α) ≥ Σ d(i), and α at least the second eigenvalue's modulus
    assert chain.zeta / (1 - chain.alpha) >= to_law.sum() - 1e-9
    assert chain.alpha >= np.sort(np.abs(np.linalg.eigvals(P)))[-2] - 1e-6
    assert to_law[chain.mixing_time] <= 0.25 + 1e-12
    assert chain.mixing_time == 0 or to_law[chain.mixing_time - 1] > 0.25 - 1e-12
    # of all α that the block allows, the one with the smallest ζ/(1−α)
    m = next(2**k for k in range(30) if between[min(2**k, 500)] <= 1e-4)
    if m <= 256:
        low = between[m] ** (1 / m)
        alpha = 1 - np.exp(np.linspace(np.log1p(-low), -np.log(m + 1), 400))
        alpha = np.clip(alpha, max(low, 1e-9), None)
        zeta = np.max(to_law[:m] / alpha[:, None] ** np.arange(m), axis=1)
        assert chain.zeta / (1 - chain.alpha) <= np.min(zeta / (1 - alpha)) * (1 + 1e-6) + 1e-9
    # Paulin's constant: min over t of t ((2−ε)/(1−ε))² at ε = d̄(t)
    t, apart = np.arange(1, 501)[between[1:] < 1], between[1:][between[1:] < 1]
    tau_min = np.min(t * ((2 - apart) / (1 - apart)) ** 2)
    assert 2 / tau_min - 1e-9 <= chain.beta <= 2


@pytest.mark.parametrize(
    "rows",
    [
        [["7/10", "3/10", "0"], ["1/5", "1/2", "3/10"], ["0", "1/10", "9/10"]],
        [["0", "1", "0"], ["0", "0", "1"], ["1/2", "1/2", "0"]],  # no real second eigenvalue
        [["0", "1/2", "1/2"], ["1", "0", "0"], ["1/100", "99/100", "0"]],  # almost periodic
    ],
)
def test_bound_holds_in_exact_arithmetic(rows: list[list[str]]) -> None:
    P = [[Fraction(entry) for entry in row] for row in rows]
    chain = ergodicity([[float(entry) for entry in row] for row in P])
    # exact stationary law: the principal minors of I − P, normalised
    a = [[(1 if i == j else 0) - P[i][j] for j in range(3)] for i in range(3)]
    minors = [
        a[(i + 1) % 3][(i + 1) % 3] * a[(i + 2) % 3][(i + 2) % 3]
        - a[(i + 1) % 3][(i + 2) % 3] * a[(i + 2) % 3][(i + 1) % 3]
        for i in range(3)
    ]
    law = [minor / sum(minors) for minor in minors]
    assert law == [sum((law[k] * P[k][j] for k in range(3)), Fraction(0)) for j in range(3)]
    assert chain.stationary == pytest.approx([float(p) for p in law], rel=1e-14)
    power = [[Fraction(int(i == j)) for j in range(3)] for i in range(3)]
    for i in range(150):
        worst = max(sum(abs(p - q) for p, q in zip(row, law, strict=True)) / 2 for row in power)
        assert worst <= Fraction(chain.zeta) * Fraction(chain.alpha) ** i
        power = [
            [sum((row[k] * P[k][j] for k in range(3)), Fraction(0)) for j in range(3)]
            for row in power
        ]


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.2), (0.01, 0.03), (0.9, 0.8), (0.5, 0.5), (1.0, 0.5)])
def test_two_state_chain_has_closed_form(a: float, b: float) -> None:
    """d(i) = max(a, b)/(a+b) · |1−a−b|^i and d̄(i) = |1−a−b|^i."""
    chain = ergodicity([[1 - a, a], [b, 1 - b]])
    eigenvalue = abs(1 - a - b)
    assert chain.stationary == pytest.approx((b / (a + b), a / (a + b)), rel=1e-14)
    assert chain.zeta == pytest.approx(max(a, b) / (a + b), rel=1e-4)
    assert chain.alpha == pytest.approx(eigenvalue, rel=1e-4, abs=1e-12)
    betas = [2 / (m * (1 + eigenvalue / (1 - eigenvalue**m)) ** 2) for m in range(1, 2000)]
    assert chain.beta == pytest.approx(max(betas), rel=1e-9)
    start = max(a, b) / (a + b)
    if eigenvalue > 1e-9:
        assert chain.mixing_time == math.ceil(math.log(0.25 / start) / math.log(eigenvalue))


def test_slow_chain_is_certified_quickly() -> None:
    chain = ergodicity([[1 - 3e-6, 3e-6], [7e-6, 1 - 7e-6]])
    assert chain.alpha == pytest.approx(1 - 1e-5, abs=1e-7)
    assert chain.zeta == pytest.approx(0.7, rel=0.05)
    assert chain.mixing_time == math.ceil(math.log(0.25 / 0.7) / math.log1p(-1e-5))


@pytest.mark.parametrize(("states", "leave"), [(3, 0.004), (300, 0.2), (300, 0.5)])
def test_many_steps_and_many_states(states: int, leave: float) -> None:
    """P = (1−ε) I + ε 1πᵀ with uniform π: d(i) = (1−ε)^i (1 − 1/n) and d̄(i) = (1−ε)^i.

    ε = 0.004 takes 4096 steps, of which every eighth is looked at; above 256 states d̄ ≤ 2d.
    """
    P = (1 - leave) * np.eye(states) + leave / states
    chain, stay = ergodicity(P), 1 - leave
    i = np.arange(5000)
    exact = (1 - 1 / states) * stay**i
    bound = chain.zeta * chain.alpha**i
    assert (exact <= bound + 1e-10).all()
    assert chain.zeta / (1 - chain.alpha) <= 1.25 * exact.sum()
    assert chain.mixing_time == math.ceil(math.log(0.25 / exact[0]) / math.log(stay))
    m = np.arange(1, 2000)
    exact_beta = np.max(2 / (m * (1 + stay / (1 - stay**m)) ** 2))
    assert 0.9 * exact_beta <= chain.beta <= exact_beta * (1 + 1e-9)


def test_what_is_too_slow_to_certify() -> None:
    """d̄(m) = (1−ε)^m is below 1e-4 for m ≥ 9.2/ε: within 2^24 steps for ε = 1e-6, not for 4e-7."""
    assert ergodicity([[1 - 3e-7, 3e-7], [7e-7, 1 - 7e-7]]).alpha < 1.0
    with pytest.raises(ValueError, match=r"after 16777216 steps .* still 0\.00122 apart"):
        ergodicity([[1 - 2e-7, 2e-7], [2e-7, 1 - 2e-7]])


def test_distances_are_raised_by_their_rounding_error() -> None:
    """After 3 products of matrices of 5 states: 4 · 5 · eps · (3 + 1); never above 1."""
    eps = np.finfo(float).eps
    assert certified._raised(0.25, 5, 3) == 0.25 + 80 * eps
    assert certified._raised(1.0, 5, 3) == 1.0
    law, power = np.array([0.5, 0.25, 0.25]), np.eye(3)
    assert certified._to_law(power, law, 0) == 0.75 + 12 * eps
    assert certified._between(np.array([[0.5, 0.5], [0.25, 0.75]]), 1.0, 1) == 0.25 + 16 * eps
    many = np.full((300, 300), 1 / 300)
    assert certified._between(many, 0.125, 1) == 0.25  # without looking at the pairs
    assert certified._between(many, 0.75, 1) < 1e-9


def test_products_are_row_stochastic() -> None:
    P, Q = np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([[0.0, 1.0], [0.5, 0.5]])
    np.testing.assert_allclose(certified._product(np.diag([2.0, 4.0]) @ P, Q), P @ Q)


def test_independent_draws_give_mcdiarmids_constant() -> None:
    chain = ergodicity([[0.25, 0.75], [0.25, 0.75]])
    assert chain.beta == pytest.approx(2.0, rel=1e-12)
    assert chain.zeta == pytest.approx(0.75, rel=1e-9)
    assert chain.alpha == pytest.approx(0.0, abs=1e-12)
    assert ergodicity([[1.0]]) == Ergodicity(0.0, 0.0, 2.0, mixing_time=0, stationary=(1.0,))


@pytest.mark.parametrize(
    ("P", "steps"),
    [
        ([[0.7, 0.3], [0.2, 0.8]], 10),
        ([[0.95, 0.05], [0.1, 0.9]], 10),
        ([[0.1, 0.9], [0.8, 0.2]], 10),
        ([[0.6, 0.4, 0.0], [0.1, 0.5, 0.4], [0.3, 0.0, 0.7]], 7),
    ],
)
def test_concentration_bound_dominates_enumerated_tails(P: list[list[float]], steps: int) -> None:
    """Lemma "mcdiarmid" for two functions, every fixed start, and the stationary start."""
    chain, matrix = ergodicity(P), np.array(P)
    n = len(matrix)
    paths = np.array(list(itertools.product(range(n), repeat=steps)))
    law = np.prod(matrix[paths[:, :-1], paths[:, 1:]], axis=1)
    value = np.linspace(0, 1, n)[paths]
    weights = np.arange(1, steps + 1) / steps
    cases = [
        (value.mean(axis=1), np.full(steps, 1 / steps)),
        (value @ weights, weights),
        ((paths == 0).any(axis=1).astype(float), np.ones(steps)),
    ]
    starts = [np.eye(n)[x] for x in range(n)] + [matrix[x] for x in range(n)]
    for start in [*starts, np.array(chain.stationary)]:
        probability = start[paths[:, 0]] * law
        assert probability.sum() == pytest.approx(1.0)
        for f, kappa in cases:
            deviation = np.abs(f - probability @ f)
            for threshold in np.unique(deviation):
                tail = probability[deviation >= threshold].sum()
                exponent = -chain.beta * threshold**2 / np.sum(kappa**2)
                assert tail <= 2 * math.exp(exponent) + 1e-12


def test_tensors_are_read() -> None:
    P = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float32, requires_grad=True)
    assert ergodicity(P).zeta == pytest.approx(0.6, abs=1e-5)


def test_rows_are_divided_by_their_sums() -> None:
    """Thirds in float32 sum to 1 + 3e-8; what is used sums to 1."""
    thirds = np.full((3, 3), 1 / 3, dtype=np.float32)
    assert abs(thirds.astype(float).sum(axis=1) - 1.0).max() > 1e-8
    assert abs(transition_matrix(thirds).sum(axis=1) - 1.0).max() < 1e-15


@pytest.mark.parametrize("states", [2, 3, 6, 7, 9])
def test_a_long_way_round_is_one_class(states: int) -> None:
    """A cycle with one loop: the last state is reached after as many steps as there are states."""
    P = np.roll(np.eye(states), 1, axis=1)
    P[0] = 0.5 * P[0]
    P[0, 0] = 0.5
    assert len(ergodicity(P).stationary or ()) == states


@pytest.mark.parametrize(
    ("P", "message"),
    [
        ([[0.5, 0.5]], r"square matrix, got shape \(1, 2\)"),
        ([0.5, 0.5], r"square matrix, got shape \(2,\)"),
        (np.zeros((0, 0)), r"square matrix, got shape \(0, 0\)"),
        ([[float("nan"), 1.0], [0.5, 0.5]], r"finite and non-negative, got P\[0, 0\] = nan"),
        ([[1.5, -0.5], [0.5, 0.5]], r"finite and non-negative, got P\[0, 1\] = -0.5"),
        ([[0.0, 1.0], [-0.25, 1.25]], r"finite and non-negative, got P\[1, 0\] = -0.25"),
        ([[0.0, 1.0], [math.inf, 0.5]], r"finite and non-negative, got P\[1, 0\] = inf"),
        ([[0.5, 0.5], [0.5, 0.4]], r"row-stochastic: row 1 sums to 0.9 "),
        ([[0.5, 0.4], [0.5, 0.7]], r"row-stochastic: row 1 sums to 1.2 "),  # the one farther off
        ([[0.7, 0.2], [0.3, 0.8]], r"row-stochastic: row 0 sums to 0.9 "),  # its transpose is fine
        (np.eye(3), "irreducible: state 1 is never reached from state 0"),
        (
            [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]],
            "irreducible: state 2 is never reached from state 0",
        ),
        ([[0.0, 1.0], [1.0, 0.0]], "aperiodic: it returns to a state only after"),
        ([[0, 1, 0], [0, 0, 1], [1, 0, 0]], "aperiodic: it returns to a state only after"),
        (
            [[0, 0.5, 0, 0.5], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]],
            "aperiodic: it returns to a state only after",
        ),
        ([[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]], "mixes too slowly"),
    ],
)
def test_bad_matrices_are_refused(P: ArrayLike, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ergodicity(P)


@pytest.mark.parametrize(
    ("field", "value"), [("zeta", -1.0), ("alpha", 1.0), ("alpha", -0.1), ("beta", 0.0)]
)
def test_constants_of_a_chain_have_a_range(field: str, value: float) -> None:
    numbers = {"zeta": 1.0, "alpha": 0.5, "beta": 1.0, field: value}
    with pytest.raises(ValueError, match=field):
        Ergodicity(numbers["zeta"], numbers["alpha"], numbers["beta"])


PROCESS = """
import numpy as np
from mlmcgrad.theory import ergodicity
kept = [bytearray({shift} * 1013 + 7 * i) for i in range(50)]  # moves what is allocated next
print(ergodicity(np.random.default_rng(0).dirichlet(np.ones(37), size=37)))
"""


def test_constants_are_the_same_in_every_process() -> None:
    """Wherever arrays lie in memory, on which some solvers depend."""
    found = {
        subprocess.run(
            [sys.executable, "-c", PROCESS.format(shift=shift)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for shift in (0, 1, 5)
    }
    assert len(found) == 1
