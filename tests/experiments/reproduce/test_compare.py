"""Comparisons of runs whose curves are formulas: the answers are known exactly."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlmcgrad.experiments.reproduce.compare import decay, iteration_at, matched, rate, reaches
from mlmcgrad.experiments.reproduce.gather import TrainingRun

Curve = Callable[[float], float]
GRID = [2**i for i in range(12)]


def formula_run(
    nll: Curve,
    gradient: Curve = lambda n: 1.0,
    cost: float = 1.0,
    last: int = 2048,
    seed: int = 1,
    method: str = "mlmc",
    optimizer: str = "amsgrad",
) -> TrainingRun:
    """A run with NLL and ‖∇V‖² as functions of n, and a constant cost of an iteration."""
    tests = [
        {
            "iteration": n,
            "evaluations": cost * n,
            "seconds": 0.1 * cost * n,
            "epoch": n / 10,
            "nll": nll(n),
            "gradient": gradient(n),
            "gradient_se": 0.1,
        }
        for n in GRID
        if n <= last
    ]
    settings = {"truncation_scale": 2.0, "truncation_exponent": 0.5}
    return TrainingRun("name", Path(), method, optimizer, seed, settings, tests, [], True, None)


def test_decay_finds_the_exponent() -> None:
    run = formula_run(lambda n: 0.0, lambda n: 3.0 * n**-0.7)
    assert decay(run, math.inf)[0] == pytest.approx(-0.7)
    exact = formula_run(
        lambda n: 0.0, lambda n: 5.0 * math.log(n) ** 2 / math.sqrt(n) if n > 1 else 1
    )
    assert decay(exact, math.inf, against_rate=True)[0] == pytest.approx(0.0, abs=1e-9)
    assert rate(np.array([100.0])) == pytest.approx(math.log(100.0) ** 2 / 10.0)


def test_decay_ends_where_it_should_and_leaves_out_what_has_no_logarithm() -> None:
    kink = formula_run(lambda n: 0.0, lambda n: n**-1.0 if n <= 64 else 1.0 / 64.0)
    assert decay(kink, 64)[0] == pytest.approx(-1.0)
    assert decay(kink, 2048)[0] > -1.0
    dips = formula_run(lambda n: 0.0, lambda n: -1.0 if n in (4, 16) else n**-0.5)
    slope, count = decay(dips, math.inf)
    assert slope == pytest.approx(-0.5)
    assert count == 2
    negative = formula_run(lambda n: 0.0, lambda n: -1.0)
    slope, count = decay(negative, math.inf)
    assert math.isnan(slope)
    assert count == len(GRID)


def test_two_tests_are_enough_for_a_slope() -> None:
    run = formula_run(lambda n: 0.0, lambda n: 3.0 * n**-0.7)
    assert decay(run, 2)[0] == pytest.approx(-0.7)  # n = 1, 2
    assert math.isnan(decay(run, 1)[0])
    # Against the rate from e⁴ ≈ 55 on: n = 64, 128.
    slope, _ = decay(run, 128, against_rate=True)
    expected = -0.2 - 2.0 * math.log2(math.log(128) / math.log(64))
    assert slope == pytest.approx(expected)
    zero = formula_run(lambda n: 0.0, lambda n: 0.0 if n == 1 else 3.0 * n**-0.7)
    assert decay(zero, 4) == pytest.approx((-0.7, 1))


def test_equal_iterations_and_equal_budgets() -> None:
    """NLL = 10 − log2 n for the one that costs 1, 9.5 − log2 n for the one that costs 4."""
    run = formula_run(lambda n: 10.0 - math.log2(n))
    baseline = formula_run(lambda n: 9.5 - math.log2(n), cost=4.0, last=256)
    assert matched(run, baseline, "nll", "iteration") == pytest.approx((0.5, 1.5))
    # Both have spent 1024 at n = 1024 and n = 256: 0 against 1.5.
    assert matched(run, baseline, "nll", "evaluations") == pytest.approx((-1.5, 1.5))
    assert matched(run, baseline, "nll", "seconds") == pytest.approx((-1.5, 1.5))
    assert iteration_at(run, "evaluations", 1000.0) == pytest.approx(1000.0)
    assert iteration_at(baseline, "evaluations", 1000.0) == pytest.approx(250.0)
    # 10 − log2 n = 1.5 at n = 2^8.5, of 1024.
    ratio, reached = reaches(run, baseline, "evaluations")
    assert reached
    assert ratio == pytest.approx(2.0**8.5 / 1024.0)
    short = formula_run(lambda n: 10.0 - math.log2(n), last=128)
    ratio, reached = reaches(short, baseline, "evaluations")
    assert not reached
    assert ratio == pytest.approx(128.0 / 1024.0)
    assert matched(short, baseline, "nll", "evaluations") == pytest.approx((3.0 - 4.5, 4.5))
    assert matched(short, baseline, "nll", "iteration") == pytest.approx((0.5, 2.5))
    assert run.truncation(64.0) == 16.0
    assert formula_run(lambda n: 0.0, method="iwae").truncation(64.0) == 1.0


def test_a_goal_is_reached_at_the_first_crossing() -> None:
    """NLL falls to −3 at n = 16, rises above the goal, falls again: the crossing is before 16."""
    values = {8: 1.0, 16: -3.0, 32: 2.0, 64: -1.0}
    run = formula_run(lambda n: values.get(int(n), 5.0), last=64)
    baseline = formula_run(lambda n: 0.0, last=64)
    ratio, reached = reaches(run, baseline, "evaluations")
    assert reached
    assert ratio == pytest.approx(2.0**3.25 / 64.0)  # a quarter of the way from 1 to −3
    # Exactly the goal, at n = 8, is the goal.
    exactly = formula_run(lambda n: {4: 3.0, 8: 0.0}.get(int(n), 5.0), last=64)
    assert reaches(exactly, baseline, "evaluations") == pytest.approx((8.0 / 64.0, True))
    at_once = formula_run(lambda n: -1.0)
    assert reaches(at_once, baseline, "evaluations") == (1.0 / 64.0, True)
