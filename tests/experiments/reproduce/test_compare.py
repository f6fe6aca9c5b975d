"""Comparisons of runs whose curves are formulas: the answers are known exactly."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mlmcgrad.experiments.reproduce.compare import (
    at_end,
    decay,
    interval,
    log_rate,
    longest,
    matched,
    reaches,
)
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


def test_interval_is_students() -> None:
    values = [1.0, 2.0, 4.0]
    value, low, high = interval(values)
    expected = stats.t.interval(0.95, 2, np.mean(values), np.std(values, ddof=1) / math.sqrt(3))
    assert (value, low, high) == pytest.approx((7.0 / 3.0, *expected))
    assert interval([2.5]) == (2.5, None, None)
    assert interval([]) == (None, None, None)
    assert interval([1.0, math.nan]) == (None, None, None)


def test_interval_covers_as_often_as_it_says() -> None:
    """Null hypothesis: coverage is 95 %; a binomial bound with false-alarm rate 1e-5."""
    sample = np.random.default_rng(0).normal(size=(2000, 3))
    hits = 0
    for values in sample:
        _, low, high = interval(list(values))
        assert low is not None
        assert high is not None
        hits += low <= 0.0 <= high
    assert stats.binomtest(hits, 2000, 0.95).pvalue > 1e-5
    normal = sum(abs(v.mean()) <= 1.96 * v.std(ddof=1) / math.sqrt(3) for v in sample)
    assert stats.binomtest(int(normal), 2000, 0.95).pvalue < 1e-5  # the planted bug: no Student


def test_decay_finds_the_exponent() -> None:
    run = formula_run(lambda n: 0.0, lambda n: 3.0 * n**-0.7)
    assert decay(run, math.inf)[0] == pytest.approx(-0.7)
    exact = formula_run(
        lambda n: 0.0, lambda n: 5.0 * math.log(n) ** 2 / math.sqrt(n) if n > 1 else 1
    )
    assert decay(exact, math.inf, against_rate=True)[0] == pytest.approx(0.0, abs=1e-9)
    assert log_rate(np.array([100.0])) == pytest.approx(math.log(math.log(100.0) ** 2 / 10.0))


def test_decay_ends_where_it_should_and_leaves_out_what_has_no_logarithm() -> None:
    kink = formula_run(lambda n: 0.0, lambda n: n**-1.0 if n <= 64 else 1.0 / 64.0)
    assert decay(kink, 64)[0] == pytest.approx(-1.0)
    assert decay(kink, 2048)[0] > -1.0
    dips = formula_run(lambda n: 0.0, lambda n: -1.0 if n in (4, 16) else n**-0.5)
    slope, count = decay(dips, math.inf)
    assert slope == pytest.approx(-0.5)
    assert count == 2
    lost = formula_run(lambda n: 0.0, lambda n: -1.0)
    slope, count = decay(lost, math.inf)
    assert math.isnan(slope)
    assert count == len(GRID)


def test_equal_iterations_and_equal_budgets() -> None:
    """NLL = 10 − log2 n for the one that costs 1, 9.5 − log2 n for the one that costs 4."""
    run = formula_run(lambda n: 10.0 - math.log2(n))
    baseline = formula_run(lambda n: 9.5 - math.log2(n), cost=4.0, last=256)
    assert at_end(run, baseline, "nll") == pytest.approx(0.5)
    # Both have spent 1024 at n = 1024 and n = 256: 0 against 1.5.
    assert matched(run, baseline, "nll", "evaluations") == pytest.approx((-1.5, 1.5))
    assert matched(run, baseline, "nll", "seconds") == pytest.approx((-1.5, 1.5))
    # 10 − log2 n = 1.5 at n = 2^8.5, of 1024.
    ratio, there = reaches(run, baseline, "evaluations")
    assert there
    assert ratio == pytest.approx(2.0**8.5 / 1024.0)
    short = formula_run(lambda n: 10.0 - math.log2(n), last=128)
    ratio, there = reaches(short, baseline, "evaluations")
    assert not there
    assert ratio == pytest.approx(128.0 / 1024.0)
    assert matched(short, baseline, "nll", "evaluations")[0] == pytest.approx(3.0 - 4.5)
    assert longest(run, 64.0) == 16.0
